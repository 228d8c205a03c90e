"""Audits tables of throughputs: finds values that no hardware or honest measurement gives.

`tables` reads files, `table_text` parses texts, `claims` makes them a frame with a row per throughput, `findings` adds
what follows from the specifications; `hardware_limits`, `scaling`, `copies` and `sources` are the rules, functions of
these claims; `judgement` applies them: start there. `python -m studies.audit_recall` measures recall and false
positives.
"""
