"""Audits tables of throughputs: finds values that no hardware or honest measurement gives.

`tables` reads files, `table_text` parses texts, `claims` makes them a list of claims; `findings` has claims, with what
follows from the specifications, and findings; `hardware_limits`, `scaling`, `copies` and `sources` are the rules,
functions of these claims; `judgement` applies them: start there. `python -m studies.audit_recall` measures recall and
false positives.
"""
