"""Is a rented host worth keeping? `check --deep` measures each host and judges it.

Start at `deep.py`: it plans one case for each host, reads its record and shows the verdicts. `judging.py` has the rates
with their limits; rules about a GPU's health are rows of `results.schema.health`.
"""
