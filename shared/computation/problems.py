"""Errors of computations. All are the user's to mend; none is raised for a fault of ours."""

from tidemark.shared.model.failures import Lasting


class ComputationError(Exception):
    """A computation breaks the rules of the language. The message names class, expectation and finding."""


class ClassError(ComputationError, Lasting):
    """The class is not there, is no computation, or its code cannot be read."""


class ConfigError(ComputationError, Lasting):
    """The document's `config` does not fit the computation's `Config`."""


class StateError(ComputationError, Lasting):
    """State does not encode, or the state in a snapshot does not fit the computation's `State`."""


class TimerError(ComputationError):
    """A timer that cannot be set: its name, its time or the number of them."""


class DeathError(ComputationError):
    """A callback that ended the process again and again: how often."""
