"""Example pipelines: a folder each, with its document, its computations and its data."""
