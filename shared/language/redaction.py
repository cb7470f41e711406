"""What of documents and settings may be shown: everything but secrets.

A value is a secret by the name of its setting (password, secret, token, key, …) or, in an address, by its place (`user:password@host`). A
reference `${NAME}` is shown: it says where the secret is, not what it is.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shared.language.documents.connections import REFERENCE
from shared.language.documents.load import load
from shared.language.problems import InvalidDocument

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"passw|secret|token|credential|api_?key|access_?key|private|sasl_plain|jaas|(^|_)key$|(^|_)pass$", re.IGNORECASE
)
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^:@/\s]*):(?P<secret>[^@/\s]+)@", re.IGNORECASE
)
_QUERY: Final = re.compile(r"(?P<name>[?&;](?:password|passwd|pwd|token|secret|key)=)[^&;\s]+", re.IGNORECASE)


def redacted(value: Any, name: str = "") -> Any:
    """A tree with its secrets hidden; `name` is the setting that holds it. Nothing is changed in place."""
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, name) for item in value]
    if isinstance(value, str):
        return _text(value, name)
    return HIDDEN if value is not None and _SECRET.search(name) and not isinstance(value, bool) else value


def _text(value: str, name: str) -> str:
    if _SECRET.search(name) and value:
        return value if REFERENCE.fullmatch(value) else HIDDEN
    return redacted_line(value)


def redacted_line(line: str) -> str:
    """A line of text, such as a log's, with the secrets of addresses hidden."""

    def hide(found: re.Match[str]) -> str:
        secret = found["secret"]
        return f"{found['scheme']}{found['user']}:{secret if REFERENCE.fullmatch(secret) else HIDDEN}@"

    return _QUERY.sub(lambda found: found["name"] + HIDDEN, _ADDRESS.sub(hide, line))


def redacted_text(text: str) -> str:
    """A JSON text with its secrets hidden; one that is no JSON is hidden whole."""
    try:
        return msgspec.json.encode(redacted(msgspec.json.decode(text))).decode()
    except msgspec.DecodeError:
        return HIDDEN


def redacted_document(tree: Any) -> Any:
    """A processor's document: its connections without secrets; the pipeline, which holds none, as it is."""
    if not isinstance(tree, Mapping):
        return tree
    return {key: redacted(value) if key == "connections" else value for key, value in tree.items()}


def redacted_command(data: bytes) -> bytes:
    """A command's JSON with its secrets hidden: the same bytes where there are none, all of it hidden if it is no JSON."""
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return HIDDEN.encode()
    if not isinstance(tree, Mapping):
        return HIDDEN.encode()
    shown = {key: _document(value) if key == "document" else redacted(value, str(key)) for key, value in tree.items()}
    return data if shown == tree else msgspec.json.encode(shown)


def _document(value: Any) -> Any:
    """An object, or the text of one; a text stays as it is if it hides nothing."""
    if not isinstance(value, str):
        return redacted_document(value)
    try:
        tree, _ = load(value)
    except InvalidDocument:
        return HIDDEN
    shown = redacted_document(tree)
    return value if shown == tree else shown
