"""Starts benchmarks on a host, follows them and collects their records, with a launcher for each kind of engine.

Start with `base.py`, the interface of all launchers. `docker/` starts containers, `ssh/` processes of an agent, also on
this machine, `slurm/` and `kubernetes/` jobs in queues, which `polling.py` polls for all worker slots at once.
`container.py` defines the isolation of benchmarks for every engine; `limits.py` limits responses of engines; `pulls.py`
limits and times pulls. Results are judged in `running/`.
"""
