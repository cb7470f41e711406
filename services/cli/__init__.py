"""The cli service."""
