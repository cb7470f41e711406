"""The input machine: what a source reads, what of it is idle, and how it ends."""
