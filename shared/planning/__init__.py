"""From a checked document to its parts that run: logical stages, physical vertices and edges, and each task's operators."""

from tidemark.shared.planning.physical import Engine, PlanError, plan_processor
from tidemark.shared.planning.specs import CollectHead, DeadLetterHead, Head, LookupHead, ReadHead, StepHead, WriteHead

__all__ = [
    "CollectHead",
    "DeadLetterHead",
    "Engine",
    "Head",
    "LookupHead",
    "PlanError",
    "ReadHead",
    "StepHead",
    "WriteHead",
    "plan_processor",
]
