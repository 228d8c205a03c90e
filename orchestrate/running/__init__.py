"""Executes a plan: every repeat gets exactly one record, whatever happens to its host.

Start with `run.py` (`execute`), then `worker.py`, which runs the repeats of a host or a queue. `session.py` is the
connection to a host and what runs there, with its limits; `judge.py` turns the results of a benchmark into its record;
`context.py` is what workers share, and `controller.py` locks and ends the process itself. Nothing is printed:
everything that happens is an event, and `state.py` reduces events to what displays show and a limit of cost allows.
"""
