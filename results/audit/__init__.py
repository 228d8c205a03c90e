"""Audits tables of throughputs: finds values that no hardware or honest measurement gives.

`tables` reads files, `texts` and `claims` parse throughputs with their settings; `limits`, `patterns`, `scaling_audit`,
`copies` and `sources_compared` are the rules; `judgement` applies them: start there.
`python -m studies.audit_recall` measures the recall and the false positives of the rules.
"""
