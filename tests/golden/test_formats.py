# ruff: noqa: N802 -- a test carries its rule's name
"""What is written for others to read keeps its form: the table of `tidemark.shared.model.formats` against `tests/golden/formats`."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.formats import FORMS, Example, made, recorded, shown
from tidemark.services.sink.connectors.kafkamarkers import Marker
from tidemark.shared.model import formats
from tidemark.shared.model.formats import FORMATS, FormatError, JsonCodec, VersionedFormat
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.wire.limits import WireError

REFUSED = (FormatError, WireError, TargetRefused)
"""What decoding raises, each where its callers look for it."""
RECORDED = [(fmt, version) for fmt in FORMATS for version in fmt.reads]


def named(fmt: VersionedFormat) -> str:
    return fmt.name.replace(" ", "-")


def test_every_format_is_in_the_table_and_has_examples() -> None:
    """There is no format without an example, and no version that is read without a recorded one."""
    declared = {value for value in vars(formats).values() if isinstance(value, VersionedFormat)}
    assert declared == set(FORMATS) == set(FORMS)
    assert len({fmt.name for fmt in FORMATS}) == len(FORMATS)
    for fmt in FORMATS:
        assert fmt.version in fmt.reads
        assert list(made(fmt))
        assert all(recorded(fmt, version) for version in fmt.reads), fmt.name


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_what_is_written_is_what_was_recorded(fmt: VersionedFormat) -> None:
    """Other bytes are another version; a field that readers of this one may ignore is recorded beside what is there."""
    known = {example.data for example in recorded(fmt, fmt.version)}
    for example in made(fmt):
        assert example.data in known, (
            f"{fmt.name}, {example.case}: not as recorded. Raise its version in shared/model/formats.py, or, where whoever ignores the"
            " difference does nothing wrong, keep it; then run `python -m tests.harness.formats`"
        )


@pytest.mark.parametrize(
    ("fmt", "version"), RECORDED, ids=lambda value: str(value) if isinstance(value, int) else named(value)
)
def test_what_was_recorded_is_read(fmt: VersionedFormat, version: int) -> None:
    """Every recorded value of every version, and every field that it had."""
    for example in recorded(fmt, version):
        assert holds(shown(FORMS[fmt].decode(example.data)), example.value), example.case


def holds(found: Any, value: Any) -> bool:
    """Whether all that was recorded is there; fields that came later may be, too."""
    if isinstance(value, dict):
        return isinstance(found, dict) and all(name in found and holds(found[name], v) for name, v in value.items())
    if isinstance(value, list):
        return isinstance(found, list) and len(found) >= len(value) and all(map(holds, found, value))
    return bool(found == value)


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_a_later_version_is_refused_in_a_sentence(fmt: VersionedFormat) -> None:
    """Format, version found, versions read; nobody takes it for one that it knows, whatever lies behind the number."""
    later = fmt.version + 1
    known = recorded(fmt, fmt.version)[0].data
    spelt = re.sub(rb'"version":\d+', b'"version":%d' % later, known)
    data = spelt if known[:1] == b"{" else bytes([known[0], later]) + known[2:]
    assert data != known
    versions = " or ".join(map(str, fmt.reads))
    with pytest.raises(REFUSED, match=f"expected {re.escape(fmt.name)} of version {versions}, found {later}: a later"):
        FORMS[fmt].decode(data)


@pytest.mark.parametrize("fmt", FORMATS, ids=named)
def test_bytes_without_a_version_are_refused(fmt: VersionedFormat) -> None:
    """A map, as before there were versions, or nothing at all; other versions, too."""
    for data, word in (
        (b"\x81\xa1a\x01", "no version|do not decode"),
        (b"\xc1", "no version|do not decode"),
        (b"{}", "no version"),
    ):
        with pytest.raises(REFUSED, match=f"expected {re.escape(fmt.name)}.*({word})"):
            FORMS[fmt].decode(data)
    known = recorded(fmt, fmt.version)[0].data
    if known[:1] != b"{":
        with pytest.raises(REFUSED, match=f"of version .*, found 0 in {len(known)} bytes"):
            FORMS[fmt].decode(bytes([known[0], 0]) + known[2:])


def test_a_field_that_is_not_known_is_ignored() -> None:
    """Whoever may not ignore it raises the version."""
    markers = JsonCodec(formats.MARKER, Marker)
    assert markers.decode(b'{"version":1,"identity":"i","epoch":4,"predecessor":null,"later":true}') == Marker(
        identity="i", epoch=Epoch(4), predecessor=None
    )
    answer = next(made(formats.ANSWER))
    grown = answer.data[:2] + bytes([answer.data[2] + 1]) + answer.data[3:] + b"\xa5later\xc3"
    assert shown(FORMS[formats.ANSWER].decode(grown)) == answer.value


def examples() -> st.SearchStrategy[tuple[VersionedFormat, Example]]:
    known = [(fmt, example) for fmt, version in RECORDED for example in recorded(fmt, version)]
    return st.sampled_from(known)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "put", "drop")), st.integers(0, 10_000), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=4,
)


@contextlib.contextmanager
def naming(fmt: VersionedFormat) -> Iterator[None]:
    """What is refused in the block is said of this format."""
    try:
        yield
    except REFUSED as error:
        if fmt.name not in str(error):
            raise AssertionError(f"{error} does not name {fmt.name}") from error
        raise


@given(examples(), CHANGES)
def test_F6_any_damage_is_an_error_that_names_the_format_or_another_value(
    known: tuple[VersionedFormat, Example], changes: list[tuple[str, int, bytes]]
) -> None:
    """Whatever becomes of the bytes, no other exception comes out."""
    fmt, example = known
    data = bytearray(example.data)
    for kind, where, other in changes:
        at = where % (len(data) + 1)
        match kind:
            case "flip" if data:
                data[at % len(data)] ^= other[0] or 1
            case "cut":
                del data[at:]
            case "put":
                data[at:at] = other
            case "drop":
                del data[at : at + len(other)]
            case _:
                pass
    with contextlib.suppress(*REFUSED), naming(fmt):
        FORMS[fmt].decode(bytes(data))


OTHER = {
    "shared/model/formats.py": "the codecs",
    "shared/wire/frames.py": "frames, which have their version among their fields",
    "shared/computation/state.py": "a user's own state has a version of its own, within the state of a computation",
    "shared/operators/computation_keys.py": "a key within the state of a computation",
    "shared/language/values/codec.py": "a value, within what holds it",
    "shared/operators/computation_calls.py": "fields of documents that the codec of values has made",
    "shared/language/accumulators/numbers.py": "a partial, within what holds it",
    "shared/protocol/coordinator/checkpoints.py": "the digest of a commit row",
    "shared/protocol/coordinator/splits.py": "a size",
    "shared/adapters/commit_schema.py": "a checksum",
    "shared/wire/seals.py": "what a seal's MAC is of",
    "shared/computation/bundle.py": "a digest",
    "shared/plugins/messagepack.py": "records of others, whose format is MessagePack itself",
    "services/operator/child.py": "between a process and its own child",
    "services/operator/asking.py": "between a process and its own child",
    "services/operator/apart.py": "between a process and its own child",
    "services/library/elsewhere.py": "a state, to show it",
    "services/sink/connectors/memory.py": "of a try-out, which nothing outlives",
}
"""Where else MessagePack is written or read, and why that is no format of its own."""


def test_nothing_is_packed_beside_the_table() -> None:
    """Bytes for others are written by a codec, so that they have a version."""
    packs = re.compile(r"msgpack\.(encode|decode|Encoder|Decoder|packb|unpackb)\b")
    found = {
        str(path)
        for folder in ("shared", "services", "spark_stages")
        for path in Path(folder).rglob("*.py")
        if packs.search(path.read_text())
    }
    assert found == set(OTHER)
