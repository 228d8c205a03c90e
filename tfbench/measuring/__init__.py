"""Times steps of a network and checks that they are valid.

Start with `timing`: steps run until their times settle, and are then timed one by one. `validity` checks the first
steps (several replicas train like one device, losses are finite): if a check fails, the repeat is `invalid`.
`soft_warnings` accompany a valid figure: spread, drift, throttling, energy, software.
"""
