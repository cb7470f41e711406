"""Imports each module of the installed package that is no program. Run by an environment's Python: `python environment_modules.py`."""

import importlib
import pkgutil
import sys

import tidemark

PROGRAMS = "__main__"


def _failed(name: str) -> None:
    raise ImportError(f"{name} is a package that cannot be imported")


def main() -> int:
    """Import them; the first that fails ends it with its trace."""
    if "site-packages" not in (tidemark.__file__ or ""):
        sys.stderr.write(f"expected the installed package, found {tidemark.__file__}\n")
        return 1
    modules = [each.name for each in pkgutil.walk_packages(tidemark.__path__, "tidemark.", onerror=_failed)]
    for name in modules:
        if not name.endswith(PROGRAMS):
            importlib.import_module(name)
    sys.stdout.write(f"{len(modules)} modules\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
