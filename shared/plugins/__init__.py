"""The interface of plug-ins: sources and sinks of other packages, found by entry points."""
