"""The input machine: the splits that a source reads, which of them are idle, and how the input ends."""
