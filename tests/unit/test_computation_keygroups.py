"""Key groups: the hash is Kafka's, one key at a time and in columns."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.operators.keygroups import key_group, key_groups, murmur2, murmur2_column

# The vectors of Kafka's own UtilsTest, signed as Java has them.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA)
def test_one_key_hashes_as_in_kafka(key: bytes) -> None:
    """murmur2 gives what Kafka's clients give, so keys meet in the same partition."""
    assert murmur2(key) == KAFKA[key] & 0xFFFFFFFF
    assert key_group(key, 1000) == (KAFKA[key] & 0x7FFFFFFF) % 1000


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40))), st.integers(1, 300), st.integers(0, 5))
def test_a_column_hashes_as_its_keys_do(keys: list[bytes | None], groups: int, cut: int) -> None:
    """The vectorised form agrees with the plain one for any mix of lengths, nulls and slices."""
    column = pa.array(keys, pa.binary())[cut:]
    plain = [k or b"" for k in keys[cut:]]
    assert murmur2_column(column).tolist() == [murmur2(k) for k in plain]
    assert key_groups(column, groups).tolist() == [key_group(k, groups) for k in plain]


@settings(deadline=None)
@given(st.lists(st.binary(min_size=9, max_size=9), max_size=50))
def test_keys_of_one_length_take_the_fast_path(keys: list[bytes]) -> None:
    """Keys of one length, plain, large or fixed size, hash alike."""
    expected = [murmur2(k) for k in keys]
    for kind in (pa.binary(), pa.large_binary(), pa.binary(9)):
        assert murmur2_column(pa.array(keys, kind)).tolist() == expected
