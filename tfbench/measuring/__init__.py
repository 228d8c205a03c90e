"""What is measured of a network's steps, and whether it may be trusted.

Start with `timing`: steps are taken until their times settle, then timed one by one. `validity` checks the first steps
(several replicas train like one device, losses are finite): a check that fails makes the repeat `invalid`.
`soft_warnings` is what a reader of a valid figure should know: spread, drift, throttling, energy, software.
"""
