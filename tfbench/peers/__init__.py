"""The hosts of one case: `cluster` reads addresses from TF_CONFIG, `connections` connects them and detects dead ones."""
