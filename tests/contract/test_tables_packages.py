"""Catalogs, places and files of Iceberg that need a package which Tidemark does not bring."""

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import sqlalchemy.dialects
from packaging.requirements import Requirement
from pyiceberg.catalog import CatalogType, load_catalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import SCHEMA_TO_FILE_IO
from sqlalchemy.exc import NoSuchModuleError

from tests.contract.sources_worlds import catalog_in
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.shared.adapters.icebergfiles import CheckedIO, PackageMissing
from tidemark.shared.adapters.tablelibraries import open_catalog
from tidemark.shared.language.documents import parse

LIBRARIES = ("pyiceberg", "sqlalchemy")
NOWHERE = "127.0.0.1:1"
ADDRESSES = {"rest": "http", "hive": "thrift"}
A_JVM = {"hdfs", "viewfs"}
"""Places that need one, and no package."""
COMMAND = re.compile(re.escape(f"run: {sys.executable} -m pip install ") + r"('pyiceberg\[[\w-]+\]'|[\w-]+)$")


def names(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def brought(package: str, extras: frozenset[str] = frozenset(), seen: set[Any] | None = None) -> set[str]:
    """What is there with a package: it, what it asks for, and so on."""
    seen = set() if seen is None else seen
    if (package, extras) not in seen:
        seen.add((package, extras))
        try:
            asked = [Requirement(each) for each in requires(package) or ()]
        except PackageNotFoundError:
            asked = []
        for each in asked:
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                brought(names(each), frozenset(each.extras), seen)
    return {name for name, _ in seen}


@cache
def lacking() -> list[str]:
    """Modules of what the libraries may take, and Tidemark does not bring."""
    optional = {names(Requirement(each)) for library in LIBRARIES for each in requires(library) or ()}
    packages = optional - brought("tidemark")
    assert "boto3" in packages
    return [
        module
        for module, distributions in packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", each).lower() for each in distributions} <= packages
    ]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment as users have it."""
    for module in lacking():
        monkeypatch.setitem(sys.modules, module, None)
    for module in [each for each in sys.modules if re.match(r"pyiceberg\.catalog\.(glue|dynamodb|hive|big)", each)]:
        monkeypatch.delitem(sys.modules, module)


def refused(act: Callable[[], object]) -> str | None:
    """The sentence on a missing package; None where there is no need of one. Whatever else fails is not looked at."""
    try:
        act()
    except PackageMissing as error:
        return str(error)
    except (ImportError, NotInstalledError, NoSuchModuleError) as error:
        raise AssertionError(f"bare {error!r}") from error
    except Exception:  # noqa: BLE001 - a server that is not there, an address that none has
        return None
    return None


def catalogs() -> Iterator[dict[str, str]]:
    """Of each kind that PyIceberg has, with each driver that SQLAlchemy has."""
    for kind in CatalogType:
        yield {"type": kind.value, "uri": f"{ADDRESSES.get(kind.value, 'sqlite')}://{NOWHERE}"}
    yield {"type": "rest", "uri": f"http://{NOWHERE}", "rest.sigv4-enabled": "true"}
    yield {"uri": f"http://{NOWHERE}", "rest.sigv4-enabled": "True"}
    for dialect in modules(sqlalchemy.dialects):
        for driver in modules(dialect):
            if hasattr(driver, "dialect"):
                name = "+".join(driver.__name__.split(".")[-2:])
                yield {"type": "sql", "uri": f"{name}://secret:secret@{NOWHERE}/x"}
    yield {"type": "sql", "uri": f"snowflake://secret:secret@{NOWHERE}/x"}


def modules(package: ModuleType) -> list[ModuleType]:
    inside = [each.name for each in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in inside]


def test_each_catalog_says_what_to_install(bare: None) -> None:
    """Those that need a package name the setting that needs it; a password is not shown."""
    told: dict[str, str] = {}
    for settings in catalogs():
        found = refused(lambda settings=settings: open_catalog(settings, lambda _: None))  # type: ignore[misc]
        if found is not None:
            told[found.partition(": expected")[0]] = found
    commands = {what: COMMAND.search(text) for what, text in told.items()}
    for kind in ("glue", "dynamodb", "hive", "bigquery"):
        assert commands[f"catalog: type: {kind}"][1] == f"'pyiceberg[{kind}]'"  # type: ignore[index]
    assert commands["catalog: rest.sigv4-enabled: true"][1] == "boto3"  # type: ignore[index]
    assert commands["catalog: rest.sigv4-enabled: True"][1] == "boto3"  # type: ignore[index]
    assert commands["catalog: uri: mysql+pymysql://…"][1] == "pymysql"  # type: ignore[index]
    for unknown in ("mysql+mysqldb", "snowflake"):
        assert told[f"catalog: uri: {unknown}://…"].endswith("; install the package that has it")
    assert not [text for text in told.values() if "secret" in text]


async def test_a_check_of_what_is_there_says_it(bare: None, tmp_path: Path) -> None:
    """Of a table that is read, and of one that is written."""
    glue = {"type": "files", "path": str(tmp_path), "catalog": {"type": "glue"}}
    signed = {**glue, "catalog": {"type": "rest", "uri": f"http://{NOWHERE}", "rest.sigv4-enabled": "true"}}
    own: dict[str, Any] = {"$source": {"documents": [{"a": 1}]}}
    table = {"connectionName": "c", "path": "n/t", "format": "iceberg"}
    for connection, package in ((glue, "'pyiceberg[glue]'"), (signed, "boto3")):
        for stages in (
            [own, {"$emit": table}],
            [{"$source": table}, {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}],
        ):
            (error,) = await refused_by_what_is_there(parse({"connections": {"c": connection}, "pipeline": stages}))
            assert f"run: {sys.executable} -m pip install {package}" in str(error)
            assert "pipeline[" in str(error)


def test_each_place_says_what_to_install(bare: None) -> None:
    """A table's files lie where its metadata says."""
    files = CheckedIO({"tidemark.check": lambda _: None, "s3.region": "x"})
    told = {
        scheme: refused(lambda scheme=scheme: files.new_input(f"{scheme}://a/b"))  # type: ignore[misc]
        for scheme in SCHEMA_TO_FILE_IO
        if scheme not in A_JVM
    }
    commands = {scheme: COMMAND.search(text)[1] for scheme, text in told.items() if text}  # type: ignore[index]
    assert commands == {"abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface-hub"}
    assert str(told["hf"]).startswith("hf://a/b: expected a package")


def test_a_list_of_manifests_in_snappy_says_what_to_install(bare: None, tmp_path: Path) -> None:
    """PyIceberg has the codec, and takes a package for it."""
    with_rows = load_catalog(**catalog_in(tmp_path))
    with_rows.create_namespace("n")
    rows = pa.table({"a": [1]})
    table = with_rows.create_table("n.t", rows.schema)
    table.append(rows)
    with_rows.close()
    path = Path(table.current_snapshot().manifest_list.removeprefix("file://"))
    in_snappy(path)
    versions = IcebergVersions(("n", "t"), catalog_in(tmp_path), lambda _: None)
    told = str(refused(lambda: versions.files(versions.newest())))
    versions.close()
    assert told.startswith("n.t: expected a package")
    assert COMMAND.search(told)[1] == "'pyiceberg[snappy]'"  # type: ignore[index]


def in_snappy(path: Path) -> None:
    with path.open("rb") as file:
        read = fastavro.reader(file)
        records, kept = list(read), {name: text for name, text in read.metadata.items() if not name.startswith("avro.")}
        schema: dict[str, Any] = json.loads(read.metadata["avro.schema"])
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, codec="snappy", metadata=kept)
