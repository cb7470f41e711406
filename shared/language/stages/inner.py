"""The stages that may stand inside a window, by their operators."""

from typing import Final

from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages import (
    add_fields,
    count,
    group,
    limit,
    match,
    project,
    redact,
    replace_root,
    skip,
    sort,
    unset,
    unwind,
    validate,
)

STATELESS: Final[dict[str, StageSpec]] = {
    "$match": match.SPEC,
    "$addFields": add_fields.SPEC,
    "$set": add_fields.SPEC,
    "$project": project.SPEC,
    "$unset": unset.SPEC,
    "$replaceRoot": replace_root.SPEC,
    "$replaceWith": replace_root.WITH,
    "$unwind": unwind.SPEC,
    "$redact": redact.SPEC,
    "$validate": validate.SPEC,
}
IN_PLACE: Final = {
    name: STATELESS[name] for name in ("$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith")
}
"""Those that make one document of one."""
GATHERING: Final[dict[str, StageSpec]] = {
    "$group": group.SPEC,
    "$sort": sort.SPEC,
    "$limit": limit.SPEC,
    "$skip": skip.SPEC,
    "$count": count.SPEC,
}
GATHERING_NAMES: Final = f"{', '.join(list(GATHERING)[:-1])} or {list(GATHERING)[-1]}"
INNER: Final[dict[str, StageSpec]] = {**STATELESS, **GATHERING}
