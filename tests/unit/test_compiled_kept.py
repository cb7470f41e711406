"""Machine code is made once and kept, and a process that may keep nothing works all the same."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import types
from numba.core import caching

from tidemark.shared.compiled import compiling, json
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
    monkeypatch.setattr(compiling, "ROOM", tmp_path)
    stamp = compiling._stamp.__wrapped__
    before = stamp()
    assert stamp() == before
    (tmp_path / "b.py").write_text("c")
    assert stamp() != before


def test_nothing_is_compiled_while_data_flows() -> None:
    """A call with other types than those that were compiled ahead is refused; it does not stand still for seconds."""
    with pytest.raises(TypeError):
        json.strings(*range(7))
