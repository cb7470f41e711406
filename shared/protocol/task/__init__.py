"""The task machine: how a source, operator, Spark stage or sink treats frames, barriers and watermarks."""
