"""Benchmarks as jobs of a Slurm cluster, through nothing but a login shell and a folder that all nodes share."""
