"""Tables that lookups ask, by what they are: rows of a database, a file, the document's own."""
