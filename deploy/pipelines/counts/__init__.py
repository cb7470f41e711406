"""Counts of each user by the minute, and of all users."""
