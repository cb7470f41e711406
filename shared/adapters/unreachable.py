"""The errors of file systems for a place that cannot be reached now: time mends it (C10)."""

import sys


def unreachable(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """For `except`, with others besides.

    Errors of S3's library on a name that nobody resolves, or a connection that is refused or broken, are no OSErrors.
    """
    names = {"botocore.exceptions": ("ConnectionError", "HTTPClientError"), "aiohttp": ("ClientError",)}
    # Where none of a library was loaded, none of its errors can have been raised: file systems load theirs.
    loaded = [(sys.modules[module], each) for module, kinds in names.items() if module in sys.modules for each in kinds]
    return (*others, OSError, TimeoutError, *(getattr(module, each) for module, each in loaded))
