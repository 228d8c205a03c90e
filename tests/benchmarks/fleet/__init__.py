"""A fleet of simulated engines: what a controller costs with a thousand hosts, without a thousand machines."""
