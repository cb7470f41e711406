"""The traffic of a web server."""
