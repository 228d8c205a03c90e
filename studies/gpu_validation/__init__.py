"""GPU validation, resumable: `steps.py` is the table, `__main__.py` runs it, `figures.py` reads the results.

The `probe_…` files run as processes in TensorFlow's interpreter. What it measures: `__main__.py`.
"""
