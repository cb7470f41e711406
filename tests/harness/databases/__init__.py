"""Drawn stories of a real database that others use while Tidemark works with it: `make databases`.

`changes` writes tables in many sessions and says which events a source of their changes has to give; `targets` draws tables and documents
for `$merge`, and says which of them a table takes. Neither asks the product what is right.
"""
