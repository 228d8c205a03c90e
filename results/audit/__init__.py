"""Whether a table is plausible: rules over claims, each with its chance of being wrong."""
