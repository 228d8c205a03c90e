"""The machines of `hosts.yml`, and the images that suit them.

`hosts.read_hosts` turns `hosts.yml` into fully resolved `Host`s: keys are in `hosts.py` and `queues.py`, addresses in
`addresses.py`. `variants.py` reads the table of images. `rented.py` writes a `hosts.yml` from the lists
of renting tools. A new key is a field in `hosts.py` or `queues.py`.
"""
