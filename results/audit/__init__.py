"""Audits tables of throughputs: finds values that no hardware or honest measurement gives.

`table_text` parses texts of tables, `claims` makes them a list of claims; `consistency` has the rules within a table,
`judgement` those that need a reference, and applies all: start there. Rules are functions of the claims.
`python -m studies.audit_recall` measures recall and false positives.
"""
