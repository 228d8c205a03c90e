"""Executes a plan: every repeat gets exactly one record, whatever happens to its host.

Start with `run.py` (`execute`), then `worker.py`, which runs the repeats of a host or a queue. `session.py` is the
connection to a host, `judge.py` turns the results of a benchmark into its record, `watchdog.py` enforces time limits by
the controller's clock, `multi_host.py` runs multi-host jobs, and `controller.py` locks and ends the process itself.
Nothing is printed: everything that happens is an event, and `state.py` reduces events to what is shown.
"""
