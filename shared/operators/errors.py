"""Errors of operators. What is wrong with one document is no error but a dead letter."""


class OperatorError(Exception):
    """The task cannot go on: says what was expected, what was found, and what to do."""
