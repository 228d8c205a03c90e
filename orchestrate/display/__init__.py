"""Displays of hosts, plans and runs: `display` has lines and JSON, `live` the live table, `tables` the rest."""
