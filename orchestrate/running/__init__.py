"""A run: workers, repeats, records, and how it ends."""
