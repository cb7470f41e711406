"""For tests of a user's own: `Harness` runs a computation with records, watermarks, time and restarts, `Chain` several."""

from tidemark.shared.computation.harness import Chain, Harness

__all__ = ["Chain", "Harness"]
