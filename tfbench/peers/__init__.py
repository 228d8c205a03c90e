"""The hosts of one case: `cluster` reads addresses from TF_CONFIG, `links` connects them and detects dead ones."""
