"""Documents as Python has them: checked, and explained."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tidemark.services.cli.explain import phases, planned
from tidemark.services.cli.foreseen import refused_by_a_run
from tidemark.services.cli.reading import read_document
from tidemark.services.library.values import to_language
from tidemark.services.local.address import BROKER_VARIABLE
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.planning import Engine, PlanError

AnyDocument: TypeAlias = Mapping[str, Any] | str | Path
"""A processor's document: as a mapping, as a text in YAML or JSON, or the path of its file."""


def text_of(document: AnyDocument) -> str:
    """The text of a document. Unreadable for a path without one; TypeError if it is no document."""
    match document:
        case Path():
            return read_document(document)
        case str():
            return document
        case Mapping():
            return json.dumps(to_language(document, "document", canonical=False))
    raise TypeError(
        f"expected a document: a mapping, a text in YAML or JSON, or the pathlib.Path of a file; found {type(document).__name__}"
    )


def validate(document: AnyDocument) -> list[str]:
    """The reasons why `tidemark run` would refuse it, each `place: reason`; [] if none. Connects to nothing. Unreadable, TypeError."""
    try:
        processor, _ = planned(text_of(document), "spark")
    except InvalidDocument as error:
        return [str(each) for each in error.errors]
    except PlanError as error:
        return [str(error)]
    return [str(each) for each in refused_by_a_run(processor, {BROKER_VARIABLE: "", **os.environ})]


def explain(document: AnyDocument, engine: Engine = "spark") -> str:
    """How it would run, as `tidemark explain` shows it. InvalidDocument, PlanError, Unreadable, TypeError."""
    return "\n".join(phases(*planned(text_of(document), engine)))
