"""The targets outside that documents of an installation may reach: folders, URLs, hosts, modules of computations, values.

`TIDEMARK_ALLOW`, JSON, says so; without it all but what is the installation's own, addresses of this machine's link (where clouds keep
their machines' passwords) and, unless it is said, the machine itself (loopback).
"""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tidemark.shared.language.documents.connections import REFERENCE
from tidemark.shared.language.stages import Connection
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.settings import knob
from tidemark.shared.process.settings import read_table, settings_of

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<authority>[^/?#]*)")
_CHAIN: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*::|::[A-Za-z][A-Za-z0-9+.-]*(://|::|$)")
"""Of file systems inside of file systems (`zip://a::s3://b/c`): each could lead elsewhere."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_LOCAL_SCHEMES: Final = ("", "file", "local")
_NO_DATABASES: Final = frozenset(
    {"http", "https", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hdfs", "sftp", "ftp"}
)
"""Their clients end a host at the first `/`, `?` or `#`, as RFC 3986 does."""
_MACHINES: Final = ("/proc", "/sys", "/dev", "/run/secrets", "/var/run/secrets")
"""Folders where the system and container engines keep secrets of processes: `/proc/self/environ` is a process' environment."""
_HOST_OPTIONS: Final = ("host", "hostaddr", "proxyhost")
_MONGODB_FILES: Final = ("tlscafile", "tlscertificatekeyfile", "tlscrlfile")
_MACHINES_OWN: Final = ("MONGODB-AWS", "MONGODB-OIDC", "GSSAPI")
_CLASS: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_DEPTH_MAX: Final = 32
"""Of a connection's config: documents are not deeper."""


class NotAllowed(WrongSetup):
    """A document names a target that this installation does not let it reach: gives the place, the target, and the setting that decides."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Empty lists of folders, schemes, hosts or modules: all but those that are closed."""

    folders: tuple[str, ...] = knob(())
    """Only below these."""
    closed: tuple[str, ...] = knob(())
    """Nothing below these: the installation's own."""
    schemes: tuple[str, ...] = knob(())
    """Of URLs, such as `s3`; paths of this machine are `file`."""
    hosts: tuple[str, ...] = knob(())
    """Names or addresses, `*` for any part; hosts named here may be on this machine or its link, too."""
    loopback: bool = knob(False)
    """This machine itself."""
    modules: tuple[str, ...] = knob(())
    """Of computations' classes, with those below them."""
    plugins: tuple[str, ...] = knob(())
    """Names of plug-ins, `*` for any part; no other is loaded: they run in the workers' processes."""
    variables: tuple[str, ...] = knob(("KAFKA", "LOCAL_KAFKA"))
    """Of the environment, that any connection may name as `${NAME}`. All else that connections name is a secret (`values.py`)."""

    def check_connection(self, connection: Connection) -> None:
        """NotAllowed for a connection, its values put in, that leads where documents may not."""
        where = f"connections.{connection.name}"
        settings = connection.settings
        for server in str(settings.get("bootstrapServers", "")).split(","):
            if server.strip():
                self._check_host(_host_of(server.strip(), where), f"{where}.bootstrapServers")
        if "url" in settings:
            self.check_place(str(settings["url"]), f"{where}.url")
        for url in settings.get("schemaRegistryUrls", ()):
            self.check_place(str(url), f"{where}.schemaRegistryUrls")
        for name in ("config", "catalog"):
            if name in settings:
                self._check_texts(settings[name], f"{where}.{name}")

    def check_place(self, place: str, where: str) -> None:
        """NotAllowed for a path, or a URL, that documents may not reach."""
        if _CHAIN.search(place):
            raise NotAllowed(f"{where}: chained URLs (`::`) are not read; expected a path or one URL")
        if _CONTROL.search(place):
            raise NotAllowed(f"{where}: {place!r}: expected no control characters: some clients drop them")
        if not _URL.match(place):
            self._check_scheme("file", where)
            self._check_folder(place, where)
            return
        if "\\" in place:
            raise NotAllowed(f"{where}: {place!r}: expected a URL without `\\`: some clients take it for a slash")
        authority, url = _parts_of(place, where)
        scheme = url.scheme.lower()
        if scheme.startswith("sqlite"):
            self._check_scheme("file", where)
            if path := url.path.removeprefix("/"):
                self._check_folder(unquote(path).removeprefix("file:"), where)
            return
        if scheme in _LOCAL_SCHEMES:
            self._check_scheme("file", where)
            self._check_folder(unquote(authority + url.path), where)
            return
        self._check_scheme(scheme, where)
        self._check_servers(place, authority, url, where)

    def check_file(self, path: str, where: str) -> None:
        """NotAllowed for a file of this machine that documents may not reach, by the path that a listing has for it."""
        self._check_scheme("file", where)
        self._check_folder(path, where)

    def _check_servers(self, place: str, authority: str, url: SplitResult, where: str) -> None:
        """NotAllowed for a URL with a host, or a parameter, that leads where documents may not."""
        scheme = url.scheme.lower()
        if scheme not in _NO_DATABASES and "@" in re.sub(r"^[^/?#]*", "", place.partition("://")[2]):
            # A database's client looks for the host behind the last one.
            raise NotAllowed(f"{where}: expected `@` as %40 in a user, a password, a path and parameters")
        for server in authority.rpartition("@")[2].split(","):
            # A path, in place of a host, is a socket of this machine.
            self._check_host("localhost" if "/" in unquote(server) else _host_of(server, where), where)
        for name, value in parse_qsl(url.query):
            if name.lower() in _HOST_OPTIONS:
                for host in value.split(","):
                    self._check_host(host, where)
            elif scheme.startswith("mongodb"):
                self._check_mongodb_option(name.lower(), value, where)

    def _check_mongodb_option(self, name: str, value: str, where: str) -> None:
        if name in _MONGODB_FILES:
            self._check_folder(value, where)
        elif name == "authmechanism" and value.upper() in _MACHINES_OWN:
            raise NotAllowed(f"{where}: {value} would show this machine's own identity; expected a user and a password")

    def check_address(self, address: str) -> None:
        """NotAllowed for an address that a name has led to. Where `hosts` names servers, their names were judged."""
        if not self.hosts:
            self._check_host(address, "the address that the host leads to")

    def check_class(self, path: str) -> None:
        """NotAllowed for a class (`module:Class`) of a module that computations may not come from; to be asked before it is imported."""
        if not _CLASS.fullmatch(path):
            raise NotAllowed(f'class: expected "module:Class" of plain names, found {path[:200]!r}')
        module = path.partition(":")[0]
        top = module.partition(".")[0]
        if self.modules:
            if any(module == name or module.startswith(f"{name}.") for name in self.modules):
                return
            raise NotAllowed(
                f"class {path!r}: computations come from {', '.join(self.modules)} here (modules of TIDEMARK_ALLOW)"
            )
        if top in sys.stdlib_module_names or (top == "tidemark" and not module.startswith("tidemark.deploy.")):
            raise NotAllowed(f"class {path!r}: {top} has no computations of users; expected a module of yours")

    def check_plugin(self, name: str, config: Mapping[str, object], where: str) -> None:
        """NotAllowed for a plug-in that this installation has not been told to trust, or a URL of its config; asked before it is loaded."""
        if not any(fnmatch(name, allowed) for allowed in self.plugins):
            expected = f"expected {', '.join(self.plugins)}" if self.plugins else "none is used here until it is named"
            raise NotAllowed(
                f"{where}: plug-in {name[:100]!r}: {expected} (plugins of TIDEMARK_ALLOW; tidemark up --plugin)"
            )
        self._check_texts(config, f"{where}.config")

    def _check_texts(self, tree: object, where: str) -> None:
        for place, text in _texts(tree, where):
            name = place.rpartition(".")[2]
            if _URL.match(text):
                self.check_place(text, place)
            elif name in _HOST_OPTIONS:
                self._check_host(text, place)

    def _check_scheme(self, scheme: str, where: str) -> None:
        if self.schemes and scheme not in self.schemes:
            raise NotAllowed(f"{where}: {scheme}: expected {', '.join(self.schemes)} (schemes of TIDEMARK_ALLOW)")

    def _check_folder(self, path: str, where: str) -> None:
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError) as error:
            raise NotAllowed(
                f"{where}: {path!r}: closed to documents: where it leads cannot be seen ({error})"
            ) from error
        # Links of `/proc` lead out of it: a path that is spelled below a closed folder is closed, wherever it leads.
        spelled = os.path.abspath(path)  # noqa: PTH100 - links stay
        if any(_below(at, os.path.realpath(folder)) for at in (real, spelled) for folder in (*self.closed, *_MACHINES)):
            raise NotAllowed(f"{where}: {path}: a folder of the installation itself, which is closed to documents")
        if self.folders and not any(_below(real, os.path.realpath(folder)) for folder in self.folders):
            raise NotAllowed(
                f"{where}: {path}: expected a path below {', '.join(self.folders)} (folders of TIDEMARK_ALLOW)"
            )

    def _check_host(self, host: str, where: str) -> None:
        name = host.strip("[]").rstrip(".").lower()
        if not (name.isascii() and name.isprintable()):
            # Clients map such letters to others: a full-width digit to a digit, an ideographic stop to a dot.
            raise NotAllowed(
                f"{where}: host {name!r}: expected printable ASCII; a name in other letters in its form `xn--…`"
            )
        if any(fnmatch(name, allowed.lower()) for allowed in self.hosts):
            return
        if self.hosts:
            raise NotAllowed(f"{where}: host {name!r}: expected {', '.join(self.hosts)} (hosts of TIDEMARK_ALLOW)")
        address = _address(name)
        if address is not None and (address.is_link_local or address.is_unspecified or address.is_multicast):
            raise NotAllowed(
                f"{where}: {name}: an address of this machine's link, or of none; hosts of TIDEMARK_ALLOW may name it"
            )
        here = name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)
        if here and not self.loopback:
            raise NotAllowed(
                f"{where}: {name}: this machine itself; `loopback` of TIDEMARK_ALLOW lets documents reach it"
            )


ANYBODY: Final = Allowed()
"""Where an installation says nothing."""
OWNER: Final = Allowed(loopback=True, plugins=("*",))
"""Of a document that runs in its owner's own process, or is looked at there."""


def read_allowed(environment: Mapping[str, str]) -> Allowed:
    """TIDEMARK_ALLOW; closed are also what the process' settings name as the installation's own. ProcessSettingsError."""
    found = settings_of(read_table(environment, "ALLOW"), Allowed, "TIDEMARK_ALLOW")
    store = environment.get("TIDEMARK_STORE", "")
    own = [environment.get(f"TIDEMARK_{name}", "") for name in ("BLOBS", "SECRETS", "SIGNING_KEYS_FILE")]
    own.append(store.partition(":///")[2] if store.startswith("sqlite") else "")
    return replace(found, closed=(*found.closed, *(path for path in own if path and not _URL.match(path))))


def below(root: str, path: str, where: str) -> str:
    """A path below a connection's folder or URL. NotAllowed for one that leaves it."""
    if not root:
        return path
    if ".." in PurePosixPath(path.replace("\\", "/")).parts or _URL.match(path):
        raise NotAllowed(f"{where}: {path}: expected a path below the connection's, without `..`")
    return f"{root.rstrip('/')}/{path.lstrip('/')}"


def closed_values(settings: Mapping[str, object], opened: Sequence[str]) -> list[str]:
    """The names in `${NAME}` of a connection that are not open to every document."""
    found = (name for _, text in _texts(settings, "") for name in REFERENCE.findall(text))
    return sorted({name for name in found if name not in opened})


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Every text in a tree, with its place."""
    waiting = [(value, place, 0)]
    while waiting:
        item, at, depth = waiting.pop()
        if depth > _DEPTH_MAX:
            raise NotAllowed(f"{at}: deeper than {_DEPTH_MAX} levels")
        if isinstance(item, str):
            yield at, item
        elif isinstance(item, Mapping):
            waiting += [(inner, f"{at}.{key}", depth + 1) for key, inner in item.items()]
        elif isinstance(item, list | tuple):
            waiting += [(inner, at, depth + 1) for inner in item]


def _parts_of(place: str, where: str) -> tuple[str, SplitResult]:
    """What stands between `//` and the path of a URL, and its other parts. NotAllowed.

    The first may name several hosts, which the library's parser takes for a wrong one where some have brackets.
    """
    found = _URL.match(place)
    assert found is not None, "it begins as a URL does"
    try:
        return found["authority"], urlsplit(found["scheme"] + place[found.end() :])
    except ValueError as error:
        raise NotAllowed(f"{where}: {place!r}: no URL: {error}") from error


def _below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _host_of(server: str, where: str) -> str:
    """Of `host:port`, `[host]:port` or a URL. NotAllowed."""
    try:
        return urlsplit(server if _URL.match(server) else f"//{server}").hostname or ""
    except ValueError as error:
        raise NotAllowed(f"{where}: {server!r}: expected host:port: {error}") from error


def _address(name: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    """The address that the system makes of a name, odd forms (`0x7f.1`, `2130706433`) included."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(name))
        except OSError:
            return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address
