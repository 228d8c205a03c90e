"""Runs benchmarks as Jobs of a Kubernetes cluster.

Start with `launcher.py`. `job.yml` is the Job of a repeat, which `manifests.py` fills in. `objects.py` has the fields
of the cluster's objects that are used, `pods.py` the states of a repeat, `nodes.py` the facts in node labels. `api.py`
wraps the official client.
"""
