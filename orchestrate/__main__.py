"""`python -m orchestrate COMMAND`: the commands of `tfbench` where it is not installed."""

from orchestrate.cli import main

if __name__ == "__main__":
    main()
