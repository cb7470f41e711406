"""The errors by which a plug-in says what may be tried again (C10), and those that are raised about one."""

from tidemark.shared.model.failures import Lasting, Outage


class Away(Outage):
    """For plug-ins to raise: the other side does not answer; waiting may help. It is tried again on a new object, and is no failure."""


class Refused(Lasting):
    """For plug-ins to raise: time does not mend it. The processor is FAILED at once, with the reason."""


class Overtaken(Exception):
    """For sinks to raise: the marker is not the one that the write names as the last, so another writer was there. Nothing is written."""


class PluginError(Lasting):
    """A plug-in that is not installed, does not load, or does not take its config. The message names plug-in, expectation and finding."""


class PluginFailed(Exception):
    """A plug-in raises what is neither `Away` nor `Refused`, or breaks its contract. It is tried again, as every failure."""
