"""Slips of YAML's own: what people write that is no YAML is named with its place, and what is some but hardly meant is a warning."""

import pytest

from tidemark.shared.language.documents.load import load_all
from tidemark.shared.language.problems import InvalidDocument


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("topic: orders\u00a0", "topic", "U+00A0 (NO-BREAK SPACE) stands in 'orders\\xa0'"),
        ("a: {b\u200b: 1}", "a.b\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("topic: \ufefforders", "topic", "U+FEFF"),
        ("topic: “orders”", "topic", "such quotes are part of the text"),
        ("topic: orders'", "topic", "ends with a quote that does not begin"),
        ("topic: orders,", "topic", "ends with ','"),
        ("topic: orders;", "topic", "ends with ';'"),
        ("a: {b:: 1}", "a.b:", "the name b: ends with a colon"),
        ("a: {b:1}", "a.b:1", "is b: 1 meant?"),
        ("a: {b; 1}", "a.b; 1", "is b: 1 meant?"),
        ("a: {b\uff1a 1}", "a.b\uff1a 1", "is b: 1 meant?"),
        ("a: {b 1}", "a.b 1", "is b: 1 meant?"),
        ("a: {b: , c: 1}", "a.b", "b has no value, which is null"),
        ("a:\nb: 1", "a", "a has no value, which is null"),
        ("until [x: 1", "until [x", "has [ in it: a colon is missing in front"),
        ("a: x}", "a", "ends with '}'"),
        ("a: 2026-01-01", "a", "write {$date: '2026-01-01'} for an instant"),
        ("a: 2026-01-01T00:00:00Z", "a", "for an instant"),
        ("a: 1_000", "a", "1_000 is a text here, and no number"),
        ("a: 1,000", "a", "1,000 is a text here, and no number"),
        ("a: 0b11", "a", "no number"),
        ("a: 1:30", "a", "no number"),
        ("a: NaN", "a", "write .nan or .inf"),
        ("a: yes", "a", "write true"),
    ],
)
def test_what_is_hardly_meant_is_a_warning(text: str, path: str, said: str) -> None:
    """With its place and its line; the tree is what YAML says."""
    loaded = load_all(text)
    assert not loaded.errors
    (warning,) = loaded.warnings
    assert (warning.path, warning.line) == (path, 1)
    assert said in warning.message


@pytest.mark.parametrize(
    "text",
    [
        'a: "orders\u00a0"',
        'a: "“x”"',
        "a: 'x,'",
        "a: '2026-01-01'",
        "a: ~\nb: null",
        "a: |\n  x,\n",
        "a: it's\nb: rock 'n' roll",
        "a: 你好\uff0c世界\nb: $x.y\nc: http://x:1/\nd: a[0]\ne: ${X}\nf: 1.5.2\ng: x:y",
        '{"a": null, "b": "2026-01-01", "c": ""}',
        "a: [x, y]\nb: {}\nc: ''",
    ],
)
def test_what_is_in_quotes_or_plain_is_not_doubted(text: str) -> None:
    """Nobody is warned of what can mean one thing alone."""
    loaded = load_all(text)
    assert (loaded.errors, loaded.warnings) == ((), ())


def test_a_text_of_a_connection_is_not_shown() -> None:
    """It may be a password."""
    (warning,) = load_all("connections: {a: {password: secret'}}").warnings
    assert "secret" not in str(warning)
    with pytest.raises(InvalidDocument) as found:
        load_all("connections:\n  a:\n    password: secret: word\n")
    assert "secret" not in str(found.value)
    assert "word" not in str(found.value)


def test_a_number_that_no_double_holds_is_an_error() -> None:
    """It was infinity, without a word."""
    for text in ("a: 1e400", '{"a": 1e400}', "a: -1e999"):
        (error,) = load_all(text).errors
        assert "is more than a double holds" in error.message
    assert load_all("a: .inf").errors == ()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a:\n\tb: 1\n", 2, "in column 1: a tab cannot indent, write blanks"),
        ("a:\n  b: 1\n\u00a0\u00a0c: 2\n  d: 3\n", 4, "U+00A0 (NO-BREAK SPACE) stands there, write a blank"),
        ("a:\n- b\n– c\n", 4, "an item begins with - and a blank|U"),
        ("a:\n  - b: 1\n  -c: 2\n", 3, "at '-' in column 3: a blank belongs behind the -"),
        ("a: {b: 1\nc: 2\n", 2, "a comma, a bracket or a quote is missing before it"),
        ("a: b: c\n", 1, "at ':' in column 5: a text with a colon and a blank needs quotes"),
        ("a: @b\n", 1, "a text that begins with @ needs quotes"),
        ("a: 1\n---\nb: 2\n", 2, "a file has one document"),
        ("a: 1\n...\nb: 2\n", 3, "a file has one document"),
        ("a: 1\n b: 2\n", 2, "mapping values are not allowed"),
        ("a:\n  b: 1\n c: 2\n", 3, "that begins in line 1, at 'c' in column 2"),
        ("a: 1\nb: \x0b\n", 2, "U+000B (a control character) is not allowed"),
        ("a: 1\nb: \0\n", 2, "U+0000 (a control character) is not allowed"),
        ("a: [1, 2\n", 2, "at the end of the text"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_place_and_its_usual_reason(text: str, line: int, said: str) -> None:
    """Line and column, what stands there, what was expected, and what to do."""
    with pytest.raises(InvalidDocument) as found:
        load_all(text)
    (error,) = found.value.errors
    assert error.line == line, error
    assert any(each in str(error) for each in said.split("|")), error
