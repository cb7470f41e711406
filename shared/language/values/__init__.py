"""MongoDB's definitions on values: types, order, equality, keys, arithmetic; extended JSON and the compact codec."""

from tidemark.shared.language.values.codec import (
    CodecError,
    decode_doc,
    decode_own_doc,
    decode_value,
    encode_doc,
    encode_docs,
    encode_value,
    encoder,
    is_tagged,
)
from tidemark.shared.language.values.extended_json import ExtendedJsonError, from_json, parse_json, render_json, to_json
from tidemark.shared.language.values.keys import canonical_key
from tidemark.shared.language.values.order import compare, equal, sort_key
from tidemark.shared.language.values.types import is_number, truth, type_name
from tidemark.shared.language.values.written import written

__all__ = [
    "CodecError",
    "ExtendedJsonError",
    "canonical_key",
    "compare",
    "decode_doc",
    "decode_own_doc",
    "decode_value",
    "encode_doc",
    "encode_docs",
    "encode_value",
    "encoder",
    "equal",
    "from_json",
    "is_number",
    "is_tagged",
    "parse_json",
    "render_json",
    "sort_key",
    "to_json",
    "truth",
    "type_name",
    "written",
]
