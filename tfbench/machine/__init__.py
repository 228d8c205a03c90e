"""The machine as its drivers describe it; no TensorFlow in this room."""
