"""Random schedules of faults: see `schedules.py`."""
