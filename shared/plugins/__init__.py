"""The interface of plug-ins: sources, sinks, lookups and formats of other packages, found by entry points."""
