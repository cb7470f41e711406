"""Machine code is made once and kept, and a process that may keep nothing works all the same."""

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemark.shared.compiled import building, json, keeping, linking
from tidemark.shared.compiled.__main__ import _shares
from tidemark.shared.compiled.compiling import INT64S, INT64S_OUT, Compiled

USES = """
import sys
import pyarrow as pa
from tidemark.shared.compiled import documents
assert documents.read(pa.array([b'{"a": 1}']), [("a",)]).sure.all()
print(*sys.modules)
"""


def doubled(numbers: Any, out: Any) -> Any:
    """A function to compile."""
    for place in range(len(out)):
        out[place] = numbers[place] * 2
    return len(out), numbers[0]


def small() -> Compiled:
    """One that is compiled in no time."""
    return Compiled(doubled, "small.doubled", 2, (INT64S, INT64S_OUT))


def works(addresses: Callable[[str], int]) -> bool:
    """Whether the machine code is that of `doubled`."""
    function, out = small(), np.zeros(2, np.int64)
    function.at(addresses(function.name))
    return function(np.array([3, 4]), out) == (2, 3) and out.tolist() == [6, 8]


def test_a_process_that_uses_what_was_compiled_ahead_loads_no_compiler() -> None:
    """A process that starts behind another finds the code of each function: numba would take 100 MiB and most of a second."""
    done = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "llvmlite.binding" in modules
    assert "numba" not in modules


@pytest.mark.parametrize("count", [1, 2, 4, 100])
def test_each_module_is_compiled_by_one_process(count: int) -> None:
    """However many there are: its functions have parts in common, which are compiled once."""
    shares = _shares(count)
    assert all(shares)
    assert len(shares) <= count
    assert sorted(itertools.chain(*shares)) == sorted({function.module for function in building.everything()})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where machine code of the small function alone is kept."""
    monkeypatch.setattr(keeping, "folder", lambda: tmp_path)
    monkeypatch.setattr(linking, "made", lambda: building.machine_code([building.bitcode(small())]))
    return tmp_path


@pytest.mark.parametrize("kept", [None, b"", b"\x80", b"damaged" * 100])
def test_what_is_not_there_or_was_damaged_is_compiled_anew(kept: bytes | None, place: Path) -> None:
    """A file that is missing, cut off or changed costs the time to compile, once."""
    if kept is not None:
        keeping.keep(b"code")
        (file,) = place.iterdir()
        file.write_bytes(file.read_bytes()[:32] + kept)
    assert keeping.kept() is None
    assert works(linking.addresses.__wrapped__())
    code = keeping.kept()
    assert code is not None
    assert works(linking.linked(code))


def test_where_nothing_can_be_kept_it_is_compiled_for_the_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be made costs the time to compile, and nothing else."""
    (place / "file").touch()
    monkeypatch.setattr(keeping, "folder", lambda: place / "file" / "folder")
    assert works(linking.addresses.__wrapped__())
    assert keeping.kept() is None


def test_a_damaged_file_beside_the_source_is_passed_over_where_it_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image's folder is for reading alone: then the user's cache has the code, and no start compiles it again."""
    beside = tmp_path / "__pycache__"
    monkeypatch.setattr(keeping, "ROOM", tmp_path)
    monkeypatch.setenv(keeping.CACHE_VARIABLE, str(tmp_path / "cache"))
    keeping.keep(b"code")
    (file,) = beside.iterdir()
    file.write_bytes(b"damaged")
    monkeypatch.setattr(os, "access", lambda *_: False)
    keeping.keep(b"code")
    assert keeping.kept() == b"code"
    assert [path.parent for path in (tmp_path / "cache").rglob("*.code")] == [tmp_path / "cache" / "compiled"]


def test_nothing_stays_of_code_that_a_full_disk_did_not_take(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start would leave a part of it there."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "chmod", full)
    keeping.keep(b"code")
    assert list(place.iterdir()) == []


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


@pytest.mark.parametrize(
    "arguments",
    [
        range(4),
        (np.zeros(3, np.uint8), np.zeros(4, np.int32), np.zeros(3, np.int64), np.zeros(3, np.bool_)),
        (np.zeros((3, 1), np.uint8), np.zeros(4, np.int64), np.zeros(3, np.int64), np.zeros(3, np.bool_)),
        (np.zeros(3, np.uint8), np.zeros(8, np.int64)[::2], np.zeros(3, np.int64), np.zeros(3, np.bool_)),
        (np.zeros(3, np.uint8), np.zeros(4, np.int64), np.frombuffer(bytes(24), np.int64), np.zeros(3, np.bool_)),
        (np.zeros(3, np.uint8), np.zeros(4, np.int64), np.zeros(3, np.int64)),
    ],
    ids=["numbers", "a type", "dimensions", "places between", "for reading alone", "one too few"],
)
def test_other_arguments_than_a_function_names_are_refused(arguments: Any) -> None:
    """CC4: machine code would read, or write, memory that is not theirs."""
    with pytest.raises(TypeError):
        json.instants(*arguments)


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
    keeping.keep(b"code")
    assert keeping.is_kept()
    keeping._file(room / "__pycache__").write_bytes(keeping._file(cache / "compiled").read_bytes())
    assert (keeping.folder(), keeping.is_kept()) == (room / "__pycache__", True)
