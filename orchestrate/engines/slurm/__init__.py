"""Runs benchmarks as jobs of a Slurm cluster, through the agent on its login host and a folder that all nodes share.

Start with `launcher.py`. `script.py` writes batch scripts, which start benchmarks on nodes; `answers.py` parses what
Slurm's commands print.
"""
