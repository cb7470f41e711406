"""Protocol Buffers: messages to extended JSON, and documents to messages, by a compiled schema.

- PB1 A message is read by the schema that it was written with. Nothing of it is lost without a word: fields that the schema does not
  have, a number that no `long` holds, a map's key that begins with `$` make the record unreadable, with the reason. An extension that the
  schema has is a field by its full name in brackets, `[shop.note]`, as in Protobuf's JSON.
- PB2 A document is written if each of its values is exactly a value of its field's type; a field that the message does not have is
  an error.
- PB3 A field without presence is its default in the document, where the bytes leave it out; one with presence is missing.
- PB4 The bytes are a function of schema and document.

The bytes are decoded and encoded by Google's library, whose bounds hold: depth, UTF-8. It is loaded with the modules, not with the package.
"""


class ProtobufSchemaError(Exception):
    """A schema that is none, or lacks what it names."""


class ProtobufError(Exception):
    """A record that is none of its schema, or a document that does not fit: the place and the reason."""
