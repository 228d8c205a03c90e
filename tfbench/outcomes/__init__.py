"""The end of a repeat: `outcome` maps exceptions to a status and a cause, `findings` writes the record."""
