"""`import tidemark`: pipelines checked, explained, tried out and run from Python; see README.md."""
