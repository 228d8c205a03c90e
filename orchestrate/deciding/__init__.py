"""Which repeats are not needed any more."""
