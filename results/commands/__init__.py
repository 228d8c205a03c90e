"""The commands of `python -m results`, which are commands of `tfbench` too."""
