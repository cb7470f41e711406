"""Documents that a test draws: one of which a stage surely fails for every record is refused, and no example."""

from typing import Any

from hypothesis import assume

from tidemark.shared.language.documents import InvalidDocument, Processor, parse


def parse_drawn(tree: Any) -> Processor:
    """As `parse`; another example is drawn where every record would fail."""
    try:
        return parse(tree)
    except InvalidDocument as e:
        assume(not all("fails for every record" in error.message for error in e.errors))
        raise
