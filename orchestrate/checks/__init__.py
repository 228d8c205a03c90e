"""`check --deep`: measures each host and decides whether it is worth keeping.

Start with `deep.py`: it plans one case per host, reads the records and shows the verdicts. `judging.py` has the rates
and their limits; rules about a GPU's health are rows of `results.schema.health`.
"""
