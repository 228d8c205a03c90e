"""Container images: built, verified, pushed, saved."""
