"""The operators: importing this package declares them all."""

LOADED = True
