"""The interface of plug-ins: sources, sinks and formats of other packages, found by entry points."""
