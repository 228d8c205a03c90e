"""Peak rates of a device, and the operations and bytes of a network.

`peaks` measures matrix products and memory, `transfers` copies and all-reduces; `limits` counts a network's operations
and bytes from its layers, and compares them with the peaks.
"""
