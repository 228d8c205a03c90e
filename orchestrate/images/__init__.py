"""Container images: built, verified, pushed, saved. Start at `commands.py`; `builds.py` does the work on an engine."""
