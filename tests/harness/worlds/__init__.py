"""Clocks that are wrong, and networks that are bad, drawn from a seed, around an installation of real processes."""
