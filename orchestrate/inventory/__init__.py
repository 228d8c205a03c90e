"""Which machines there are: `hosts.yml`, addresses, queues, and the images that suit them."""
