"""Benchmarks as Jobs of a Kubernetes cluster.

Start reading at `launcher.py`. `manifests.py` describes the Job of a repeat, `pods.py` what the state of its pod means,
`nodes.py` what the fleet's nodes are; `api.py` alone knows the official client. The record is the end of a pod's log.
"""
