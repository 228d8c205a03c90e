"""Runs benchmarks as jobs of a Slurm cluster, using only a login shell and a folder that all nodes share.

Start with `launcher.py`. `script.py` writes batch scripts, which start benchmarks on nodes; `commands.py` writes the
scripts that query the cluster, and `answers.py` parses their output.
"""
