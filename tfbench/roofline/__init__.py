"""Peak rates of a device, and the operations and bytes of a network.

`limits` counts a network's operations and bytes from its layers; `peaks` measures matrix products and memory,
`transfers` copies and all-reduces; `sums` turns timed steps into the figures of a record.
"""
