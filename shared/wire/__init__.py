"""Frames and messages to bytes and back, bounded (F6)."""
