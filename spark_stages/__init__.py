"""The steps of windows on Spark DataFrames: pure, and row for row what `tidemark.shared.operators.step` gives on Arrow."""
