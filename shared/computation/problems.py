"""What can be wrong with a computation. All are the user's to mend; none is raised for a fault of ours."""


class ComputationError(Exception):
    """A computation is not what the language asks for; the message names class, expectation and finding."""


class ConfigError(ComputationError):
    """The document's `config` does not fit the computation's `Config`."""


class StateError(ComputationError):
    """State does not encode, or what lies in a snapshot does not fit the computation's `State`."""


class TimerError(ComputationError):
    """A timer that cannot be set: its name, its time or the number of them."""


class DeathError(ComputationError):
    """A callback that ended the process again and again: how often."""
