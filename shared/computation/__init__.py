"""What users write computations against: see README.md for a first one, and `harness` to test it."""

from shared.computation.base import Computation, NoConfig, NoState
from shared.computation.loading import load_computation, make_computation
from shared.computation.problems import ComputationError, ConfigError, StateError, TimerError
from shared.computation.records import Domain, Order, Record, Timer
from shared.computation.timers import Timers
from shared.model.values import Date, Document

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
