"""The interface that users write computations against. README.md has a first one; `harness` tests it."""

from tidemark.shared.computation.base import Computation, NoConfig, NoState
from tidemark.shared.computation.loading import load_computation, make_computation
from tidemark.shared.computation.problems import ComputationError, ConfigError, StateError, TimerError
from tidemark.shared.computation.records import Domain, Order, Record, Timer
from tidemark.shared.computation.timers import Timers
from tidemark.shared.model.values import Date, Document

__all__ = [
    "Computation",
    "ComputationError",
    "ConfigError",
    "Date",
    "Document",
    "Domain",
    "NoConfig",
    "NoState",
    "Order",
    "Record",
    "StateError",
    "Timer",
    "TimerError",
    "Timers",
    "load_computation",
    "make_computation",
]
