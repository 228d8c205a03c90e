"""Which machines there are, and which images suit them.

`hosts.read_hosts` turns `hosts.yml` into `Host`s in which everything is resolved: keys and types are in `form.py` and
`queues.py`, addresses in `addresses.py`. `variants.choose_variant` chooses an image by driver and GPU.
`rented.py` writes a `hosts.yml` (`machine_list.py`) from what renting tools list.
"""
