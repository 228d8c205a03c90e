"""Times steps of a network and checks that they are valid.

Start with `timing`: steps are taken until their times settle, then timed one by one. `validity` checks the first steps
(several replicas train like one device, losses are finite): a check that fails makes the repeat `invalid`.
`soft_warnings` go with a valid figure: spread, drift, throttling, energy, software.
"""
