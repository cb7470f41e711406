"""Avro's binary encoding (specification 1.12): records to extended JSON, and documents to records, by a schema.

- AV1 A record is read by the schema that it was written with. Nothing of it is lost without a word: what the language has no value for
  (more than 34 digits, a map's key that begins with `$`) makes the record unreadable, with the reason.
- AV2 A document is written if each of its values is exactly a value of the schema; a field that the schema does not have is an error.
- AV3 Hostile bytes cost no more than their length: items and nesting are bounded. (The C readers that were tried end the process at some
  thousand levels of a recursive schema, and make millions of items of five bytes.)
- AV4 The bytes are a function of schema and document.
"""

from tidemark.shared.language.avro.reading import reader_of
from tidemark.shared.language.avro.schema import (
    AvroError,
    AvroSchema,
    AvroSchemaError,
    parse_alone,
    parse_schema,
    parse_text,
)
from tidemark.shared.language.avro.writing import writer_of

__all__ = [
    "AvroError",
    "AvroSchema",
    "AvroSchemaError",
    "parse_alone",
    "parse_schema",
    "parse_text",
    "reader_of",
    "writer_of",
]
