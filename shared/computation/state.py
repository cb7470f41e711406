"""State of a key to bytes and back: MessagePack, the same bytes for equal state, checked against its type when read.

The bytes begin with the version that the computation declares (`state_version`). State of another version goes through the
computation's `migrate`; a field that does not fit the declared type is an error that names it, never a guess.
"""

import dataclasses
from typing import Any

import msgspec

from tidemark.shared.computation.problems import StateError
from tidemark.shared.language.limits import DEFAULTS
from tidemark.shared.model.values import Date, Long


def _encode_value(value: Any) -> Any:
    if type(value) in (Date, Long):
        return int(value)
    raise StateError(
        f"state holds a {type(value).__name__}, which has no encoding: use numbers, texts, bytes, lists, dicts, dataclasses"
    )


def _decode_value(wanted: type, value: Any) -> Any:
    if wanted in (Date, Long) and type(value) is int:
        return wanted(value)
    raise StateError(f"expected {wanted.__name__}, found {value!r}")


def _ordered(value: Any) -> Any:
    """The value with its maps and sets in the order of their keys."""
    if dataclasses.is_dataclass(value):
        return {f.name: _ordered(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: _ordered(value[k]) for k in sorted(value, key=_by_type)}
    if isinstance(value, (set, frozenset)):
        return [_ordered(v) for v in sorted(value, key=_by_type)]
    if isinstance(value, (list, tuple)):
        return [_ordered(v) for v in value]
    return value


def _by_type(key: Any) -> tuple[str, Any]:
    return type(key).__name__, key


class StateCodec:
    """Encodes and decodes the state of one computation class."""

    __slots__ = ("_bytes_max", "_decoder", "_encoder", "_kind", "_owner", "_version")

    def __init__(self, owner: Any, bytes_max: int = DEFAULTS.state_bytes_max) -> None:
        """`owner`: the computation; `bytes_max`: of one key's state.

        StateError if its `State` cannot be made without arguments, encoded or checked.
        """
        self._owner = owner
        self._bytes_max = bytes_max
        self._kind: type[Any] = owner.State
        self._version: int = owner.state_version
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_value, order="deterministic")
        try:
            self._decoder = msgspec.msgpack.Decoder(self._kind, dec_hook=_decode_value)
            fresh = self.decode(self.encode(self._kind()))
        except (TypeError, StateError) as e:
            raise StateError(f"{self._name()}: its State {self._kind.__name__} does not serve as state: {e}") from e
        if fresh != self._kind():
            raise StateError(
                f"{self._name()}: its State {self._kind.__name__} does not come back equal; give it an __eq__ (a dataclass has one)"
            )

    def fresh(self) -> Any:
        """The state of a key that has none yet."""
        return self._kind()

    def encode(self, state: Any) -> bytes:
        """Bytes of a state; StateError if part of it has no encoding or it is beyond the limit."""
        try:
            try:
                data = self._encoder.encode((self._version, state))
            except TypeError:
                # The encoder sorts maps of texts alone; other keys, such as the hours of a week, are sorted here.
                data = msgspec.msgpack.encode((self._version, _ordered(state)), enc_hook=_encode_value)
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            raise StateError(f"{self._name()}: its state does not encode: {e}") from e
        if len(data) > self._bytes_max:
            raise StateError(
                f"{self._name()}: the state of one key has {len(data)} bytes, at most {self._bytes_max} are allowed; keep less, or set "
                "options.limits.stateBytes"
            )
        return data

    def decode(self, data: bytes) -> Any:
        """The state of these bytes; StateError if they do not fit `State` and its version."""
        try:
            version, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
            if version == self._version:
                return self._decoder.decode(raw)
            old = msgspec.msgpack.decode(raw)
        except msgspec.DecodeError as e:
            raise StateError(f"{self._name()}: state in the snapshot does not fit {self._kind.__name__}: {e}") from e
        return self._owner.migrate(version, old)

    def _name(self) -> str:
        kind = type(self._owner)
        return f"{kind.__module__}:{kind.__qualname__}"
