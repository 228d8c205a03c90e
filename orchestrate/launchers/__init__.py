"""What starts benchmarks on a host, behind one interface: `base.py`."""
