"""Texts that mean harm: a document's reader answers each with a tree or with what is wrong, and never dies of one."""

import subprocess
import sys
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.language.documents.load import DEPTH_MAX, DIGITS_MAX, NODES_MAX, load

_OPENERS: Final = ("[", "{a: ", '{"a":', "- ", "? ", "[{", '[{"a":[', "a:\n ", "&a [", "!!map {a: ")
_DEEP: Final = st.builds(
    lambda opener, count, tail: opener * count + tail,
    st.sampled_from(_OPENERS),
    st.integers(1, 60_000),
    st.sampled_from(("", "1", "]", "}", "*a", "\n", '"', "\0", "🦀")),
)
_BLOCKS: Final = st.builds(
    lambda count, key: "".join(" " * i + f"{key}:\n" for i in range(count)),
    st.integers(1, 1_500),
    st.sampled_from("a-?"),
)
_NUMBERS: Final = st.builds(
    lambda before, digit, count, after: before + digit * count + after,
    st.sampled_from(("", '{"a": ', "a: ", "a: -", "a: 0x", "a: 0o", '{"a": -', '{"a": 1e', "a: 1.", "[")),
    st.sampled_from("0179"),
    st.integers(1, 20_000),
    st.sampled_from(("", "}", "]", ".5", "e9")),
)
_ALIASES: Final = st.builds(
    lambda count, times: (
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * times)}]\n" for n in range(1, count))
    ),
    st.integers(2, 40),
    st.integers(2, 9),
)


def _read(text: str) -> str:
    """How a text is answered: a tree, or a sentence."""
    try:
        load(text)
    except InvalidDocument as e:
        return str(e)
    return "a tree"


@given(st.one_of(_DEEP, _BLOCKS, _NUMBERS, _ALIASES, st.text(), st.binary().map(lambda b: b.decode("latin-1"))))
@example("[" * 25_000)
@example('{"a":' * 60_000)
@example('{"a": ' + "9" * 5_000 + "}")
def test_any_text_is_answered(text: str) -> None:
    """A tree, or InvalidDocument with a sentence."""
    assert _read(text)


def test_a_short_text_that_stands_for_very_much_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its aliases: a kilobyte, of which each value was made until there were too many, took seconds."""

    def read(*_: object) -> None:
        raise AssertionError("a value was read")

    monkeypatch.setattr("tidemark.shared.language.documents.load._NodeReader.read", read)
    text = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert f"line 7: the document has more than {NODES_MAX} values, aliases written out" in _read(text)
    assert f"more than {DEPTH_MAX} levels" in _read("a: &a [*a]")


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ("[{a: ", "}]")])
def test_the_same_depth_is_too_much_in_yaml_and_in_json(opened: str, closed: str) -> None:
    """What is within the bound is read, what is beyond it is refused by it."""
    levels = opened.count("[") + opened.count("{")
    fits, beyond = DEPTH_MAX // levels, DEPTH_MAX // levels + 1
    assert _read(opened * fits + "1" + closed * fits) == "a tree"
    assert f"{DEPTH_MAX} levels" in _read(opened * beyond + "1" + closed * beyond)


@pytest.mark.parametrize("form", ["a: {}", '{{"a": {}}}'])
def test_a_number_has_a_bound_of_digits(form: str) -> None:
    """One digit more is refused with both figures."""
    assert _read(form.format("9" * DIGITS_MAX)) == "a tree"
    assert f"{DIGITS_MAX + 1} digits: at most {DIGITS_MAX}" in _read(form.format("9" * (DIGITS_MAX + 1)))


def test_the_command_survives_a_deep_document() -> None:
    """`tidemark validate` of brackets 25,000 deep ends with status 1 and a sentence, not by a signal."""
    command = [sys.executable, "-m", "tidemark.services.cli", "validate", "/dev/stdin"]
    done = subprocess.run(command, input="[" * 25_000, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    said = done.stderr + done.stdout
    assert "levels" in said or "nesting depth" in said  # from 6.0.4 on PyYAML has a bound of its own
