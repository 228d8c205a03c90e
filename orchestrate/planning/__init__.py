"""Plans a run before anything is started.

Start with `plan.make_plan`, which turns hosts, their facts (`facts.py`) and suites into a `Plan`, and reads and writes
`plan.json`. `images.py` chooses images, `durations.py` estimates time and cost, `host_warnings.py` lists
problems of hosts, and `stop_early.py` decides which repeats are not needed.
"""
