"""Is a table of throughputs plausible? Finds what no hardware, or no honest measurement, gives.

`tables` reads files into texts, `texts` and `claims` into throughputs with their settings; `limits`, `patterns`,
`scaling_audit`, `copies` and `sources_compared` are the rules; `judgement` applies them: start there.
`python -m tests.benchmarks.audit_recall` measures how many faults the rules find, and how often they are wrong.
"""
