"""What services log while a program uses them as a library."""

import logging

import structlog

from tidemark.services.cli.process import quiet


def keep_quiet() -> None:
    """Log warnings alone, on standard error, unless the program has configured structlog: then what is logged is its matter."""
    if not structlog.is_configured():
        quiet(logging.WARNING)
