"""Measures the controller's cost with up to a thousand fake engines."""
