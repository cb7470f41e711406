"""Iceberg's catalogs and files, for documents: a file only where they may reach, and no class that a document, table or server names.

A table's metadata names files anywhere, and PyIceberg loads classes by names in a catalog's settings, a table's properties and a server's
answers.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import requires
from typing import Any, Final

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import SIGV4, RestCatalog
from pyiceberg.exceptions import NoSuchTableError, NotInstalledError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.utils.properties import property_as_bool
from requests import PreparedRequest, Response, Session
from sqlalchemy.exc import NoSuchModuleError

from tidemark.shared.model.failures import WrongSetup

Check = Callable[[str], None]
"""Raises where documents may not reach a path or URL."""
CODE: Final = frozenset({"py-catalog-impl", PY_IO_IMPL, "write.py-location-provider.impl", "auth"})
"""Properties by which the library finds classes."""
_CHECK: Final = "tidemark.check"
_PLACES: Final = ("endpoint", "host", "uri", "url")
"""How names of properties end that say where storage is."""
_EXTRA: Final = re.compile(r"pyiceberg\[[\w-]+\]")
_OPTIONAL: Final = re.compile(r"([\w.-]+)[^;]*;.*extra ==")
"""What a package asks for where somebody asks for more of it."""


class NoCatalogError(NoSuchTableError):  # type: ignore[misc]
    """Nobody has made the catalog yet, so it has no table either."""


class PackageMissing(WrongSetup):
    """An option, place or file needs a package that Tidemark does not bring and nobody has installed."""


_MISSES: Final = (ImportError, NotInstalledError, NoSuchModuleError)
"""What the library raises where a package is not there; the last is SQLAlchemy's, for a kind of database."""


@contextmanager
def packages_for(what: str) -> Iterator[None]:
    """PackageMissing where the library does not find a package that `what` needs."""
    try:
        yield
    except _MISSES as error:
        raise PackageMissing(_told(what, error)) from error


def package_missing(what: str, error: Exception) -> PackageMissing | None:
    """The same for an error that is there already; None for one of another kind."""
    return PackageMissing(_told(what, error)) if isinstance(error, _MISSES) else None


def _told(what: str, error: Exception) -> str:
    package = _package(error)
    command = shlex.join([sys.executable, "-m", "pip", "install", str(package)])
    remedy = "install the package that has it" if package is None else f"run: {command}"
    return f"{what}: expected a package that is not installed here; found: {error}; {remedy}"


def _package(error: Exception) -> str | None:
    """What to install, by the library's own words, or by what it and SQLAlchemy say that they may need."""
    if (named := _EXTRA.search(str(error))) is not None:
        return named[0]
    module = str(getattr(error, "name", None)).partition(".")[0].replace("_", "-").lower()
    optional = (_OPTIONAL.match(each) for library in ("pyiceberg", "sqlalchemy") for each in requires(library) or ())
    return next((each[1] for each in optional if each is not None and each[1].lower() == module), None)


class CheckedIO(FileIO):  # type: ignore[misc]
    """The library's own for each place, once it is checked."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Of a catalog that `checked_catalog` has opened."""
        super().__init__({name: value for name, value in properties.items() if name not in (*CODE, _CHECK)})
        self._check: Check = properties[_CHECK]
        self._files: dict[str, FileIO] = {}
        """By scheme."""

    def new_input(self, location: str) -> InputFile:
        """See `FileIO.new_input`."""
        with packages_for(location):
            return self._at(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """See `FileIO.new_output`."""
        with packages_for(location):
            return self._at(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """See `FileIO.delete`."""
        place = location if isinstance(location, str) else location.location
        with packages_for(place):
            self._at(place).delete(location)

    def _at(self, location: str) -> FileIO:
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - it makes columns as it is loaded

        # As the library understands it: `file:/a` is /a, and so is `file:///b/../a`.
        scheme, host, path = PyArrowFileIO.parse_location(location, self.properties)
        self._check(
            os.path.abspath(path)  # noqa: PTH100 - links are the check's matter
            if scheme == "file"
            else f"{scheme}://{host}/{path.removeprefix(host).lstrip('/')}"
        )
        if scheme not in self._files:
            self._files[scheme] = load_file_io(self.properties, location)
        return self._files[scheme]


class _CheckedRest(RestCatalog):  # type: ignore[misc]
    """One whose server says where storage is, but names no class, and leads to no server that is not checked."""

    properties: dict[str, Any]

    def _config_headers(self, session: Session) -> None:
        """Of a session that has asked nothing yet: its first request may be one for a token."""
        super()._config_headers(session)
        check, send = self.properties[_CHECK], session.send

        def send_checked(request: PreparedRequest, **settings: object) -> Response:
            check(str(request.url))
            return send(request, **settings)

        # Each request passes there, also one that follows a redirect.
        session.send = send_checked  # type: ignore[method-assign]

    def _fetch_config(self) -> None:
        own = dict(self.properties)
        super()._fetch_config()
        told = {name: value for name, value in self.properties.items() if own.get(name) != value}
        self.properties = {name: value for name, value in self.properties.items() if name not in told} | _data(
            told, own[_CHECK]
        )
        self.properties |= {name: own[name] for name in (PY_IO_IMPL, _CHECK)}


def checked_catalog(name: str, settings: Mapping[str, str], check: Check) -> Catalog:
    """A catalog whose files are checked. ValueError for settings that name classes; PackageMissing; raises as PyIceberg."""
    if named := sorted(CODE & settings.keys()):
        raise ValueError(f"catalog: {', '.join(named)}: a catalog's settings may not name code to load; leave it away")
    AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, settings: _CheckedRest(name, **settings)
    AVAILABLE_CATALOGS[CatalogType.SQL] = _sql
    own = {PY_IO_IMPL: f"{CheckedIO.__module__}.{CheckedIO.__qualname__}", _CHECK: check}
    with packages_for(f"catalog: {_option(settings)}"):
        catalog = load_catalog(name, **settings, **own)
    load = catalog._load_file_io  # noqa: SLF001 - where properties of a table, and of a server's answer, come in

    def load_checked(properties: Mapping[str, object] | None = None, location: str | None = None) -> FileIO:
        return load(_data(properties or {}, check), location)

    catalog._load_file_io = load_checked  # noqa: SLF001
    return catalog


def _option(settings: Mapping[str, str]) -> str:
    """The one by which the catalog's client is chosen, for messages: no more of an address than its scheme."""
    scheme, kind = settings.get("uri", "").partition("://")[0], settings.get("type", "").lower()
    if property_as_bool(dict(settings), SIGV4, False) and (kind == "rest" or (not kind and scheme.startswith("http"))):
        return f"{SIGV4}: {settings[SIGV4]}"
    return f"type: {kind}" if kind and kind != "sql" else f"uri: {scheme}://…"


def _sql(name: str, settings: Mapping[str, object]) -> Catalog:
    from tidemark.shared.adapters.icebergsql import FoundSqlCatalog  # noqa: PLC0415 - SQLAlchemy's models, which few need

    return FoundSqlCatalog(name, **settings)


def _data(properties: Mapping[str, object], check: Check) -> dict[str, Any]:
    """Those that name no class; the places among them are checked."""
    for place in _places(properties):
        check(place)
    return {name: value for name, value in properties.items() if name not in (*CODE, _CHECK)}


def _places(properties: Mapping[str, object]) -> Iterator[str]:
    for name, value in properties.items():
        if name.lower().endswith(_PLACES):
            yield str(value) if "://" in str(value) else f"http://{value}"
