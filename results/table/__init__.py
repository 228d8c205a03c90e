"""Records merged into one table: columns, cells, fleets, and what may be compared."""
