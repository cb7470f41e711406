"""Tables that lookups ask, by kind: rows of a database, a file, the document's own."""
