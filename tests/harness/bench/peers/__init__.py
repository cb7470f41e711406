"""Tidemark beside others on the same rows: ordinary producers, one broker, each result checked."""
