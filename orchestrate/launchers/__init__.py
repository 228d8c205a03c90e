"""What starts benchmarks on a host, follows them and collects their records; a launcher for each kind of engine.

Start reading at `base.py`: the calls that every launcher has. `docker/` starts containers, `ssh/` processes that an
agent guards, also on this machine, `slurm/` and `kubernetes/` jobs of queues, which `polling.py` watches for
all worker slots at once. `container.py` says what a benchmark may do and see, whoever starts it; `limits.py` bounds
what an engine may answer; `pulls.py` counts what is pulled. No launcher decides what a result is worth: see `running/`.
"""
