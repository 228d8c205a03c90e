"""Devices and settings before TensorFlow is used."""
