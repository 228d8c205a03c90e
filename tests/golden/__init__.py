"""Golden answers: what each command prints for fixed records, so that a rebuilding changes no answer unseen."""
