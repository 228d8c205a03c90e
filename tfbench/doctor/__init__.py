"""Is this machine fit for a benchmark? `python -m tfbench.doctor` looks, judges and names the command that helps."""
