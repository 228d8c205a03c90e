"""Benchmarks as jobs of a Slurm cluster, through nothing but a login shell and a folder that all nodes share.

Start reading at `launcher.py`. `script.py` writes what `sbatch` is given, and how a node starts a benchmark;
`commands.py` queries the cluster with one shell script at a time, and `answers.py` reads what comes back.
"""
