"""Whether a rented host is worth keeping: figures of its devices, judged by specification, fleet and earlier checks."""
