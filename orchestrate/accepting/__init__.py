"""Is a rented host worth keeping? `check --deep` and `run --accept` measure each host and judge it.

Start at `deep.py`: it plans one case for each host, reads its record and shows the verdicts. `judging.py` has the rates
with their limits; rules about a GPU's health are rows of `results.schema.health`.
"""
