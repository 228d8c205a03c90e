"""On the user's machine: plans a benchmark, launches it on a fleet of hosts, follows it and collects the records.

Meets `tfbench` in a command line (`Case.flags()`) and a JSON file (`results.schema.Record`); never imports it.
"""
