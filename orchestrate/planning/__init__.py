"""What will run where, before anything is started.

Start at `plan.make_plan`: hosts, what each reported (`facts.py`) and suites become a `Plan`, frozen by `codec.py` into
`plan.json`. `images.py` chooses what each host starts, `durations.py` estimates time and cost and keeps a budget,
`host_warnings.py` lists problems of a host, and `stop_early.py` decides which repeats are not needed.
"""
