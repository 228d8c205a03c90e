"""Displays of hosts, plans and runs: `display` shows what happens, `tables` what is known."""
