"""`python -m orchestrate COMMAND`: the `tfbench` command, without installing it."""

from orchestrate.cli import main

if __name__ == "__main__":
    main()
