"""Starts benchmarks on a host, follows them and collects their records, with a launcher for each kind of engine.

Start with `base.py`, the interface of all launchers. `docker/` starts containers, `ssh/` processes guarded by an agent,
also on this machine, `slurm/` and `kubernetes/` jobs of queues, which `polling.py` queries for all worker slots at
once. `container.py` defines the isolation of benchmarks for every engine; `limits.py` bounds the answers of engines;
`pulls.py` limits and times pulls. Results are judged in `running/`.
"""
