"""The pipeline language: documents, stages and expressions, parsed, checked and defined by a plain interpreter."""
