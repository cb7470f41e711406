"""The task machine: what a source, operator, Spark stage or sink does with frames, barriers and watermarks."""
