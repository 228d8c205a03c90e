"""Carries out a plan: every repeat gets exactly one record, whatever its host does.

Start reading at `run.py` (`execute`), then `worker.py`: what one host, or one queue, does with its repeats. A
`HostSession` (`session.py`) is the connection to a host, `judge.py` turns what a benchmark left into its record,
`watchdog.py` ends what takes too long by the controller's own clock. `multi_host.py` is for training steps over several
hosts, `controller.py` for the process itself: its lock, its end. It prints nothing: all that happens is an event.
"""
