"""The first hour on a GPU, resumable: `steps.py` is the table, `__main__.py` runs it, `figures.py` reads what it left.

The `probe_…` files are processes of their own in TensorFlow's interpreter. See README.md.
"""
