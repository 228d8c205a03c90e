"""Audits tables of throughputs: finds values that no hardware or honest measurement gives.

`table_text` parses texts of tables, `claims` makes them a list of claims; `findings` has claims, with what follows from
the specifications, and findings; `scaling`, `copies` and `references` are the rules, functions of these claims;
`judgement` applies them: start there. `python -m studies.audit_recall` measures recall and false positives.
"""
