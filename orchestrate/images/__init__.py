"""Container images: built, verified, pushed. Start at `commands.py`; `builds.py` does the work on an engine."""
