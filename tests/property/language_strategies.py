"""Generated values and documents of the language."""

from decimal import Decimal

from hypothesis import strategies as st

from tidemark.shared.model.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MAX_KEY,
    MIN_KEY,
    Binary,
    Date,
    ObjectId,
    Regex,
    Timestamp,
    long,
)

INTS = st.integers(INT32_MIN, INT32_MAX) | st.integers(-3, 3)
LONGS = (st.integers(INT64_MIN, INT64_MAX) | st.integers(-3, 3)).map(long)
DOUBLES = st.floats() | st.sampled_from([0.0, -0.0, 1.0, 0.5, 2.0**53, 2.0**63, 1e308])
DECIMALS = st.decimals(
    allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9
) | st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("1.00"), Decimal("1E+400"), Decimal("-0")])
NUMBERS = INTS | LONGS | DOUBLES | DECIMALS
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
DATES = st.integers(INT64_MIN, INT64_MAX).map(Date) | st.integers(-(10**13), 10**13).map(Date)
SCALARS = st.one_of(
    NUMBERS,
    TEXTS,
    st.none(),
    st.booleans(),
    DATES,
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Binary, st.binary(max_size=6), st.integers(0, 255)),
    st.builds(Regex, TEXTS, st.sampled_from(["", "i", "im"])),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MIN_KEY, MAX_KEY]),
)
NAMES = st.sampled_from(["a", "b", "c", "_id"]) | TEXTS.filter(lambda t: not t.startswith("$"))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
