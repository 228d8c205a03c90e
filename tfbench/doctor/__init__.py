"""Is this machine fit for a benchmark? `python -m tfbench.doctor` reads facts, judges them, and names the fixes.

`facts` runs `driver` and `trial` (TensorFlow), each in a process of its own with a time limit, and reads `machine`;
`checks` judges: GPUs by the rules of `results.schema.health`, all else by its own. `__main__` reports.
"""
