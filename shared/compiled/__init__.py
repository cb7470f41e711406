"""Readers and writers that are compiled to machine code: bytes to columns and back, without an object a record."""
