"""What an installation did, computed again: `tidemark audit`, and late records redriven; see README.md."""
