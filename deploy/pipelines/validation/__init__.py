"""Readings of sensors, the good and the bad."""
