"""Example: two streams joined, departures with the weather of their hour."""
