"""`tidemark validate` and `tidemark explain`: a document judged, and how it would run. Nothing is connected unless it is asked for."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.services.cli.reading import NoDocument, read_document
from tidemark.shared.language.documents import InvalidDocument, Processor, parse
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.planning import Engine, PlanError, plan_processor
from tidemark.shared.runtime.topics import check_topics

if TYPE_CHECKING:
    from tidemark.shared.planning.describe import StageText


def validate(file: Path, *, here: bool = True, connect: bool = False, as_json: bool = False) -> int:
    """All errors, a line each, on standard error; the exit status. as_json: errors and warnings on standard output.

    here: anything that a run on this machine would refuse is an error, too. connect: so is a missing topic, table or file.
    """
    try:
        processor, _ = planned(read_document(file), "spark")
    except (InvalidDocument, PlanError, NoDocument) as error:
        return _judged(file, None, list(getattr(error, "errors", [DocumentError("", str(error))])), [], as_json=as_json)
    from tidemark.services.cli.foreseen import refused_by_a_run
    from tidemark.services.local.folders import BROKER_VARIABLE
    from tidemark.shared.process.foreseen import connection_names

    errors = list(refused_by_a_run(processor, {BROKER_VARIABLE: "", **os.environ})) if here else []
    if connect and not errors:
        from tidemark.services.cli.connected import refused_by_what_is_there

        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # our own errors say the same
        errors = asyncio.run(refused_by_what_is_there(processor))
    warnings = [str(warning) for warning in processor.warnings]
    warnings += [
        f"connection {name} is not in the document: the registry has to have it"
        for name in sorted(connection_names(processor) - processor.connections.keys())
    ]
    return _judged(file, processor, errors, warnings, as_json=as_json)


def _judged(
    file: Path, processor: Processor | None, errors: list[DocumentError], warnings: list[str], *, as_json: bool
) -> int:
    """Print the errors and warnings; the exit status."""
    if as_json:
        told = {"valid": not errors, "errors": [asdict(error) for error in errors], "warnings": warnings}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return int(bool(errors))
    sys.stderr.writelines(f"warning: {warning}\n" for warning in warnings)
    sys.stderr.writelines(f"{error}\n" for error in errors)
    if errors or processor is None:
        return 1
    warned = f", {len(warnings)} warnings" if warnings else ""
    sys.stdout.write(f"{file}: {len(processor.pipeline)} stages, no errors{warned}\n")
    return 0


def explain(file: Path, engine: Engine, *, mermaid: bool, as_json: bool = False) -> int:
    """The three phases of planning on standard output; the exit status."""
    found = _planned(file, engine)
    if found is None:
        return 1
    processor, plan = found
    if as_json:
        sys.stdout.write(json.dumps(_tree(plan), indent=2) + "\n")
        return 0
    lines = diagram(plan) if mermaid else phases(processor, plan)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def planned(text: str, engine: Engine) -> tuple[Processor, PhysicalPlan]:
    """The document and its plan. InvalidDocument, PlanError."""
    processor = parse(text)
    check_topics(processor, os.environ.get("TIDEMARK_PREFIX", "tidemark"))
    return processor, plan_processor(processor, engine=engine, collects=True)


def _planned(file: Path, engine: Engine) -> tuple[Processor, PhysicalPlan] | None:
    """The document and its plan. Errors of the document go to standard error."""
    try:
        return planned(read_document(file), engine)
    except (InvalidDocument, PlanError, NoDocument) as error:
        sys.stderr.write(f"{error}\n")
        return None


def _tree(plan: PhysicalPlan) -> dict[str, Any]:
    from tidemark.shared.planning.describe import operators

    vertices = [{"id": v.id, "service": v.service, "operators": list(operators(v))} for v in plan.vertices]
    edges = [{"from": e.sender, "to": e.receiver, "partitioning": e.partitioning} for e in plan.edges]
    return {"vertices": vertices, "edges": edges}


def phases(processor: Processor, plan: PhysicalPlan) -> Iterator[str]:
    """The text, line by line."""
    from tidemark.shared.planning.alignment import alignment_text
    from tidemark.shared.planning.describe import edge_text, lifted, logical, operators, vertex_text

    yield "1 · stages"
    for stage in logical(processor):
        yield from _stage(stage, "  ")
    yield ""
    yield "2 · vertices and edges"
    for vertex in plan.vertices:
        yield f"  {vertex_text(vertex)}{alignment_text(processor, vertex)}"
    for edge in plan.edges:
        yield f"  {edge_text(edge)}"
    for line in lifted(plan):
        yield f"  {line}"
    yield ""
    yield "3 · each task"
    for vertex in plan.vertices:
        yield f"  {vertex.id}"
        for operator in operators(vertex):
            yield f"    {operator}"


def _stage(stage: "StageText", indent: str) -> Iterator[str]:
    reads = "any field" if stage.reads is None else ", ".join(stage.reads) or "no field"
    yield f"{indent}{stage.path}: reads {reads}"
    for what, how in stage.expressions:
        yield f"{indent}  {what}: {how}"
    for inner in stage.inner:
        yield from _stage(inner, indent + "  ")


def diagram(plan: PhysicalPlan) -> Iterator[str]:
    """The physical plan as a mermaid flowchart; edges by reference are thick."""
    yield "flowchart LR"
    for vertex in plan.vertices:
        label = f"{vertex.id}<br/>{vertex.label}".replace('"', "#quot;")
        yield f'  {_node(vertex.id)}["{label}"]:::{vertex.service}'
    for edge in plan.edges:
        arrow = "==>" if edge.by_reference else "-->"
        label = edge.partitioning if edge.port == "out" else f"{edge.port}, {edge.partitioning}"
        yield f"  {_node(edge.sender)} {arrow}|{label}| {_node(edge.receiver)}"


def _node(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
