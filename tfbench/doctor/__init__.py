"""Checks whether a machine is fit for a benchmark: `python -m tfbench.doctor` reads facts, judges them, names fixes.

`facts` runs `driver` and `trial` (TensorFlow), each in a process of its own with a time limit, and reads the host;
`checks` judges GPUs by the rules of `results.schema.health`, and everything else by its own. `__main__` reports.
"""
