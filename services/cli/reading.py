"""A processor's document as a file that a person names."""

from difflib import get_close_matches
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_SHOWN: Final = 5


class NoDocument(Exception):
    """A file is no document. The message says what was expected and found, and which files are there."""


def read_document(file: Path) -> str:
    """The text of a processor's document. Unreadable."""
    expected = "expected a processor's document, YAML or JSON"
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoDocument(f"{file}: {expected}, found no such file{_beside(file)}") from None
    except IsADirectoryError:
        raise NoDocument(f"{file}: {expected}, found a folder{_beside(file)}") from None
    except UnicodeDecodeError as error:
        raise NoDocument(
            f"{file}: {expected} in UTF-8, found byte {file.read_bytes()[error.start]} at {error.start}: save it as UTF-8 text"
        ) from None
    except OSError as error:
        raise NoDocument(f"{file}: {expected}, which cannot be read: {error.strerror}") from None


def _beside(file: Path) -> str:
    """The documents of the folder, or of the one where the file was looked for: the one that is most alike, else the first."""
    folder = file if file.is_dir() else file.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    there = {found.stem: found.name for found in sorted(folder.iterdir()) if found.suffix in _SUFFIXES}
    if near := get_close_matches(file.stem, there, 1):
        return f"; did you mean {folder / there[near[0]]}?"
    return f"; there are {', '.join(list(there.values())[:_SHOWN])} in {folder}" if there else ""
