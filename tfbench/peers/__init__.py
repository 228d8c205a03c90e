"""The hosts of one case: addresses, and the connection that notices a dead one."""
