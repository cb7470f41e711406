# ruff: noqa: N802 -- a test carries its rule's name
"""The code of a processor: what is in a bundle, and that what it has is loaded from it and nothing else."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemark.shared.computation import ComputationError, load_computation
from tidemark.shared.computation.bundle import Bundle, bundle_of, modules_of

CLASS = """
from tidemark.shared.computation import Computation, NoConfig, NoState
{imports}

class It(Computation[NoState, NoConfig]):
    version = {version}

    def process(self, record, state, timers):
        yield record.value
"""
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file below a folder on the path; modules that came from there are gone at the end."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield written
    for name in [name for name in sys.modules if name.startswith("bundled_")]:
        del sys.modules[name]


def names(bundle: Bundle) -> list[str]:
    """Of its modules."""
    return [module.name for module in modules_of(bundle.packed)]


def test_a_bundle_has_what_the_class_imports_of_the_users_own_and_nothing_is_run(write: Write) -> None:
    """Packages above, relative imports, imports within functions, folders without __init__; no library, no module of ours."""
    write("bundled_a/__init__.py", "raise SystemExit")
    write(
        "bundled_a/it.py",
        CLASS.format(imports="import numpy, json, bundled_b\nfrom . import near\nfrom .deep import x", version=1),
    )
    write("bundled_a/near.py", "def f():\n    from bundled_c.inner import y\n")
    write("bundled_a/deep/__init__.py", "from ..far import z\n")
    write("bundled_a/far.py", "import bundled_missing\n")
    write("bundled_a/unused.py", "")
    write("bundled_b.py", "import bundled_a.it\n")
    write("bundled_c/inner.py", "y = 1\n")
    assert names(bundle_of(["bundled_a.it:It"])) == [
        "bundled_a", "bundled_a.deep", "bundled_a.far", "bundled_a.it", "bundled_a.near", "bundled_b", "bundled_c", "bundled_c.inner",
    ]  # fmt: skip


def test_what_is_installed_or_ours_has_no_bundle() -> None:
    """A class of a package, of the product, or of Python: each worker has it, or says that it has not."""
    assert bundle_of(["msgspec.json:It", "tidemark.shared.computation.base:Computation", "json:It"]) == Bundle()


def test_a_class_whose_module_is_nowhere_is_refused_with_the_places_that_were_looked_at() -> None:
    """Not "created and started", and FAILED a moment later: the user's folder need not be the installation's."""
    with pytest.raises(ComputationError) as refused:
        bundle_of(["no_such_module.inside:It"])
    assert str(refused.value).startswith(
        "class 'no_such_module.inside:It': module no_such_module is not found by the installation"
    )
    assert str(Path.cwd()) in str(refused.value)


def test_the_digest_is_that_of_the_code_alone(write: Write, tmp_path: Path) -> None:
    """The same at another place is the same; another text, also of what is imported, is another."""
    for place in ("one", "two"):
        write(f"{place}/bundled_d.py", CLASS.format(imports="import bundled_e", version=1))
        write(f"{place}/bundled_e.py", "x = 1\n")
    found = [bundle_of(["bundled_d:It"], [str(tmp_path / place)]) for place in ("one", "two")]
    assert found[0].digest == found[1].digest
    write("two/bundled_e.py", "x = 2\n")
    assert bundle_of(["bundled_d:It"], [str(tmp_path / "two")]).digest != found[0].digest


def test_R5_what_a_bundle_has_is_loaded_from_it_whatever_is_on_the_disk_or_was_loaded_before(write: Write) -> None:
    """Version by version, in either order, with what they import; files beside are found where the code was."""
    versions = []
    for version in (1, 2):
        write("bundled_f.py", CLASS.format(imports="from bundled_g import helper", version=version))
        write("bundled_g.py", f"helper = {version}\n")
        versions.append(bundle_of(["bundled_f:It"]))
    write("bundled_f.py", "raise RuntimeError")
    for version in (1, 2, 1):
        loaded = load_computation("bundled_f:It", code=versions[version - 1].packed)
        module = sys.modules["bundled_f"]
        seen = vars(type(loaded))["version"], vars(module)["helper"], Path(str(module.__file__)).name
        assert seen == (version, version, "bundled_f.py")


def test_a_source_that_is_no_python_is_refused_by_its_place(write: Write) -> None:
    """Where the processor is made, not when its task starts."""
    write("bundled_h.py", "def f(:\n")
    with pytest.raises(ComputationError, match=r"module bundled_h \(.*bundled_h\.py\) is no Python: invalid syntax"):
        bundle_of(["bundled_h:It"])


def test_code_that_cannot_be_read_is_an_error() -> None:
    """Of a plan that was damaged."""
    with pytest.raises(ComputationError, match="the code of the plan cannot be read"):
        load_computation("bundled_i:It", code=b"no bundle")


def test_folders_without_init_may_nest(write: Write) -> None:
    """A class three folders deep is found though none of them is a package, and what it imports beside it."""
    write("bundled_nested/in/side/code.py", CLASS.format(imports="from bundled_nested.in_.other import x", version=1))
    write("bundled_nested/in_/other.py", "x = 1\n")
    found = names(bundle_of(["bundled_nested.in.side.code:It"]))
    assert "bundled_nested.in.side.code" in found
    assert "bundled_nested.in_.other" in found


def test_several_threads_make_bundles_at_once(write: Write) -> None:
    """A coordinator plans several documents beside each other; Python has folders on its path that are not there."""
    write("bundled_m/__init__.py", "")
    write("bundled_m/it.py", CLASS.format(imports="import bundled_m.other", version=1))
    write("bundled_m/other.py", "")
    expected, interval = bundle_of(["bundled_m.it:It"]), sys.getswitchinterval()

    def made(number: int) -> Bundle:
        sys.path_importer_cache.update({f"/no such folder/{number}/{each}": None for each in range(100)})
        return bundle_of(["bundled_m.it:It"])

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(made, range(100))) == [expected] * 100
    finally:
        sys.setswitchinterval(interval)
