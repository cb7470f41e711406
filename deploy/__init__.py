"""How Tidemark is deployed, and pipelines to start from."""
