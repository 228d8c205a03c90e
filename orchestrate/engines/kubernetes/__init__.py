"""Runs benchmarks as Jobs of a Kubernetes cluster.

Start with `launcher.py`. `manifests.py` builds the Job of a repeat, `pods.py` interprets the state of its pod,
`nodes.py` reads facts from node labels, and `api.py` wraps the official client.
"""
