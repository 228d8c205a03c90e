"""The hosts of one case: `cluster` reads their addresses from TF_CONFIG, `connections` connects them."""
