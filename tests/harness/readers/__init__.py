"""`make readers`: what the file sinks write, as the world's readers read it, drawn from a seed.

Drawn are the form (Delta Lake, Iceberg, JSON lines, CSV), the documents (each type of value, odd names and texts, fields that come
later, fields of several types), options of the sink, commits, compactions and deaths between. Each reader then reads the result as its
users call it: each row once, each value the document's, by a rule a form (`rules`), and nothing that was not released. `limits` has what a
reader cannot carry, and why; whatever it excuses is counted and printed.
"""
