"""The steps of windows on Spark DataFrames: pure, and row for row the result of `tidemark.shared.operators.step` on Arrow."""
