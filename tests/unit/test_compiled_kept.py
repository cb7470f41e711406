"""Machine code is made once and kept, and a process that may keep nothing works all the same."""

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba import types
from numba.core import caching

from tidemark.shared.compiled import compiling, json, keeping
from tidemark.shared.compiled.compiling import compiled


def test_what_was_compiled_ahead_is_loaded_by_the_next_process() -> None:
    """A process that starts behind another finds the code of each function, and compiles none."""
    script = "from tidemark.shared.compiled import json; print([len(f.stats.cache_misses) for f in (json.read, json.strings)])"
    found = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split("\n")[0]
        for _ in range(2)
    ]
    assert found[1] == "[0, 0]"


def test_where_nothing_can_be_kept_it_is_compiled_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written costs the time to compile, and nothing else."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", refused)

    @compiled(types.int64(types.int64))
    def double(number: Any) -> Any:
        return number * 2

    assert double(21) == 42


def test_code_fits_the_text_of_the_whole_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any file makes what was compiled stale: functions of one file are parts of another's."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(name)
    monkeypatch.setattr(keeping, "ROOM", tmp_path)
    stamp = keeping.stamp.__wrapped__
    before = stamp()
    assert stamp() == before
    (tmp_path / "b.py").write_text("c")
    assert stamp() != before


@pytest.mark.parametrize("kept", [b"", b"\x80", pickle.dumps(numba.__version__) + b"cgone.module\nname\n."])
def test_what_is_kept_and_cannot_be_read_is_compiled_anew(
    kept: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was cut off, or names modules that are no more, costs the time to compile, once."""
    monkeypatch.setattr(compiling, "folder", lambda: tmp_path)

    def make() -> Any:
        @compiled(types.int64(types.int64))
        def double(number: Any) -> Any:
            return number * 2

        return double

    make()
    (index,) = tmp_path.glob("*.nbi")
    index.write_bytes(kept)
    assert make()(21) == 42
    assert make().stats.cache_hits


def test_nothing_is_compiled_while_data_flows() -> None:
    """A call with other types than those that were compiled ahead is refused; it does not stand still for seconds."""
    with pytest.raises(TypeError):
        json.strings(*range(7))


def test_beside_a_folder_that_cannot_be_written_code_goes_to_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that an image brings is used where it lies, whole; without it a user's processes share what the first has compiled."""
    room, cache = tmp_path / "room", tmp_path / "cache"
    for path in (room / "__pycache__", cache / "compiled"):
        path.mkdir(parents=True)
    monkeypatch.setattr(keeping, "ROOM", room)
    monkeypatch.setenv(keeping.CACHE_VARIABLE, str(cache))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert (keeping.folder(), keeping.is_kept()) == (cache / "compiled", False)
    keeping.mark_kept()
    assert keeping.is_kept()
    keeping._mark(room / "__pycache__").touch()
    assert (keeping.folder(), keeping.is_kept()) == (room / "__pycache__", True)
