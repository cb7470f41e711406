"""Tidemark, under its one name: the folders beside this one are its packages."""
