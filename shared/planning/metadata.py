"""`options.streamMetaFieldName`: a document's metadata, put into a field of it before a sink.

`source` has topic, partition, offset and key of a document that comes straight from a source; `window` has start and end, and the
partition of a session, of one that comes from a window. Behind a computation a document has neither: it comes from many. Beside them stands
what `$setStreamMeta` has set.
"""

from tidemark.shared.language.expressions.ast import Expr, Meta, ObjectExpr
from tidemark.shared.language.stages import AddFields, Branch, Computed
from tidemark.shared.planning.draft import Draft

PATH = "options.streamMetaFieldName"
_SOURCE = ("topic", "partition", "offset", "key")


def metadata_stage(field: str | None, end: Draft) -> tuple[AddFields, ...]:
    """The stage that adds the field to the rows that come out here; none where there is no field, or nothing to tell."""
    if field is None or not (end.from_source or end.windowed or end.told):
        return ()
    known: list[tuple[str, Expr]] = []
    if end.from_source:
        known.append(("source", ObjectExpr(tuple((name, Meta(("source", name))) for name in _SOURCE))))
    elif end.windowed:
        known.append(("window", Meta(("window",))))
    known += [(name, Meta((name,))) for name in end.told]
    return (AddFields(path=PATH, fields=Branch(((field, Computed(ObjectExpr(tuple(known)))),))),)
