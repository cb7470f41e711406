"""Clients of other languages as producers of our sources' topics and as readers of our targets'."""
