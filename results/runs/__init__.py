"""Run folders: what a run keeps, and where records are read from."""
