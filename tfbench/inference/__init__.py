"""The forward pass alone, as it is and frozen."""
