"""What the device can do at most, measured and computed."""
