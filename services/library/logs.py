"""The services' logging while a program uses them as a library."""

import logging

import structlog

from tidemark.services.cli.process import quiet


def keep_quiet() -> None:
    """Log only warnings, on standard error. A program that has configured structlog decides itself."""
    if not structlog.is_configured():
        quiet(logging.WARNING)
