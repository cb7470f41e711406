"""How much of what is drawn or crossed a run takes: in CI a share, always the same, at a desk all of it."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

CI: Final = bool(os.environ.get("CI"))
Member = TypeVar("Member")


def share(members: Sequence[Member], of: int) -> Sequence[Member]:
    """One of so many members in CI. For members that go through the same code: more of them find nothing that a change broke."""
    return members[::of] if CI else members
