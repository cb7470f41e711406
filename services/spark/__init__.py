"""The spark service."""
