"""Opt-in: what we write for other tools, and what they print, checked with the tools themselves."""
