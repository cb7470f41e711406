"""Audits of an installation: `tidemark audit` computes its outputs again, and late records are redriven; see README.md."""
