"""The controller: plans a benchmark, launches it on fleets of hosts, follows it and collects the records.

Start with `commands`, which read as read → probe → plan → run → report; `session` does
what they share. `inventory` reads `hosts.yml`, `planning` makes `plan.json`, `running` executes it through `engines`
(Docker, ssh, Slurm, Kubernetes), `display` shows its events. `images` builds and pushes containers, `deep_check` judges
hosts, `connections` connects by ssh, `suites` holds the lists of cases. A new engine is a folder of `engines`, a new
suite a file of `suites`.

Communicates with `tfbench` by a command line (`Case.flags()`) and a JSON file (`results.schema.Record`), and never
imports it.
"""
