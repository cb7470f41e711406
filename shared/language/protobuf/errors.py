"""Errors of schemas and records of Protocol Buffers."""


class SchemaError(Exception):
    """A schema that is none, or lacks what it names."""


class ProtobufError(Exception):
    """A record that is none of its schema, or a document that does not fit: the place and the reason."""
