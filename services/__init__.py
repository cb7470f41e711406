"""One package per process of Tidemark."""
