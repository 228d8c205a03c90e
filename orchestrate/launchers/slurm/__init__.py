"""Benchmarks as jobs of a Slurm cluster, through nothing but a login shell and a folder that all nodes share.

Start reading at `launcher.py`. `script.py` writes what `sbatch` is given, `templates.py` how a node starts a benchmark;
`commands.py` asks the cluster in one shell script at a time, and `answers.py` reads what comes back.
"""
