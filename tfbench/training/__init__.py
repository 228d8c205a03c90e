"""The training step and what it reads."""
