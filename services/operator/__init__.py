"""The operator service."""
