"""One spelling for Keras 2 and 3."""
