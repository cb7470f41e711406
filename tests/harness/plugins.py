"""Packages with plug-ins, as an installer leaves them: a folder with modules and their metadata."""

from collections.abc import Mapping
from pathlib import Path


def package(folder: Path, name: str, entries: Mapping[str, Mapping[str, str]], code: str = "") -> Path:
    """A package `name` 1.2.3 with these entry points by group, and a module of its name; the folder belongs on `sys.path`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name.replace('-', '_')}.py").write_text(code, encoding="utf-8")
    metadata = folder / f"{name.replace('-', '_')}-1.2.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n", encoding="utf-8")
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in each.items()) for group, each in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


CODE = """
from dataclasses import dataclass
from tidemark.plugins import Sink, Source

@dataclass
class Config:
    table: str
    rows: int = 5

    def __post_init__(self):
        if self.rows < 1:
            raise ValueError("rows must be at least 1")

@dataclass
class Settings:
    host: str

class Fine(Sink):
    api = 1
    Config = Config
    Settings = Settings

    def marker(self, identity):
        return None

    def write(self, identity, documents, marker, after):
        pass

class Early(Fine):
    api = 2

class Unversioned(Fine):
    api = 0

class Half(Sink):
    api = 1

class Other:
    pass

number = 7
"""
"""A module with a sink that works, and some that do not."""


def several(folder: Path) -> Path:
    """A package `much` with the sinks of `CODE`."""
    names = ("Fine", "Early", "Unversioned", "Half", "Other", "number", "Nobody")
    sinks = {name.lower(): f"much:{name}" for name in names} | {"nowhere": "much_less:Fine"}
    return package(folder, "much", {"tidemark.sinks": sinks}, CODE)
