"""Starts benchmarks on a host, follows them and collects their records, with a launcher for each kind of engine.

Start with `base.py`, the interface of all launchers. `docker/` starts containers, `ssh/` processes of an agent, also on
this machine, `slurm/` and `kubernetes/` jobs in queues, which a `Poller` polls for all worker slots at once.
`invocation.py` defines names, flags and isolation of benchmarks for every engine; `bounded.py` limits responses.
Results are judged in `running/`.
"""
