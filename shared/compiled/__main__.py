"""`python -m tidemark.shared.compiled` compiles all that this room has, and keeps it: `make setup` and the images do so once."""

from importlib import import_module
from pathlib import Path

from tidemark.shared.compiled.keeping import mark_kept

for module in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"tidemark.shared.compiled.{module.stem}")
mark_kept()
