"""The first hour on a GPU: ordered steps, each with a limit, resumable. See README.md.

Standard library only, apart from the `probe_…` files, which are processes of their own in TensorFlow's interpreter.
"""
