"""The sources, a module each; `source` reads `$source`."""
