"""What documents may reach: folders, URLs, hosts, classes, values of the environment."""

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yarl

from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Connection
from tidemark.shared.process.allowed import Allowed, NotAllowed, below, read_allowed
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.process.values import SecretValues
from tidemark.shared.runtime.coordinator import PlanRefusal

HERE = (
    "127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "2130706433", "0x7f.1", "0177.0.0.1", "::ffff:127.0.0.1",
)  # fmt: skip
LINK = (
    "169.254.169.254",
    "[fe80::1%25eth0]",
    "[fe80::1]",
    "0xa9fea9fe",
    "2852039166",
    "0.0.0.0",
    "0",
    "[::]",
    "::ffff:169.254.169.254",
)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def of_kind(kind: str, host: str) -> Connection:
    host = bracketed(host)
    made: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrapServers": f"away.example:9092, {host}:9092"},
        "sql": {"url": f"postgresql://user:word@{host}:5432/db"},
        "files": {"path": "s3://bucket/x", "config": {"client_kwargs": {"endpoint_url": f"http://{host}:9000"}}},
        "sftp": {"path": "/x", "config": {"deep": [{"host": host.strip("[]")}]}},
        "registry": {"schemaRegistryUrls": ("https://away.example", f"http://{host}:8081")},
        "query": {"url": f"postgresql:///db?host={host}"},
        "several": {"url": f"postgresql://away.example,{host}/db"},
        "mongodb": {"url": f"mongodb://user:word@away.example:27017,{host}:27017/?replicaSet=r"},
        "proxy": {"url": f"mongodb://away.example/?proxyHost={host.strip('[]')}"},
    }
    return Connection("c", "kafka", made[kind])


@pytest.mark.parametrize("kind", ["kafka", "sql", "files", "sftp", "registry", "query", "several", "mongodb", "proxy"])
@pytest.mark.parametrize("host", [*HERE, *LINK])
def test_this_machine_and_its_link_are_closed(kind: str, host: str) -> None:
    """Whatever form an address has, and wherever in a connection it stands; an installation may open the machine, or name a host."""
    connection = of_kind(kind, host)
    with pytest.raises(NotAllowed, match=r"connections\.c\..*(this machine itself|of this machine's link)"):
        Allowed().check_connection(connection)
    if host in HERE:
        Allowed(loopback=True).check_connection(connection)
    else:
        with pytest.raises(NotAllowed):
            Allowed(loopback=True).check_connection(connection)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mongodb://%2Ftmp%2Fmongodb-27017.sock/", "this machine itself"),
        ("mongodb://away.example/?tlsCAFile=/proc/self/environ", "a folder of the installation itself"),
        ("mongodb://away.example/?tlsCertificateKeyFile=/run/secrets/key", "a folder of the installation itself"),
        ("mongodb+srv://away.example/?authMechanism=MONGODB-OIDC", "this machine's own identity"),
        ("mongodb://away.example/?authmechanism=mongodb-aws", "this machine's own identity"),
    ],
)
def test_a_mongodb_address_shows_nothing_of_this_machine(url: str, why: str) -> None:
    """No socket, no file that is closed, and no identity that a cloud gives the machine."""
    with pytest.raises(NotAllowed, match=why):
        Allowed().check_connection(Connection("c", "mongodb", {"url": url}))


def test_hosts_are_those_that_are_named() -> None:
    """A list of hosts is all that there is, `*` for a part."""
    allowed = Allowed(hosts=("*.example", "127.0.0.1"))
    allowed.check_connection(Connection("c", "kafka", {"bootstrapServers": "a.example:9092,127.0.0.1:1"}))
    with pytest.raises(
        NotAllowed, match=r"host 'a\.example\.org': expected \*\.example, 127\.0\.0\.1 \(hosts of TIDEMARK_ALLOW\)"
    ):
        allowed.check_connection(Connection("c", "kafka", {"bootstrapServers": "a.example:9092,a.example.org"}))


@pytest.mark.parametrize("path", ["../beside", "a/../../b", "..", "a\\..\\..\\b", "s3://other/x", "file:///etc/passwd"])
def test_a_path_does_not_leave_its_connections_folder(path: str) -> None:
    """Up is refused, wherever it would lead, and so is another root."""
    with pytest.raises(NotAllowed, match="expected a path below the connection's"):
        below("/data", path, "$emit")
    assert below("/data/", "/a..b/c", "$emit") == "/data/a..b/c"


def test_folders_are_those_that_are_open(tmp_path: Path) -> None:
    """Below a folder that is open and below none that is closed, links followed; SQLite's files are files."""
    (tmp_path / "open").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "own")
    allowed = Allowed(folders=(str(tmp_path / "open"),), closed=(str(tmp_path / "own"),))
    for good in (f"{tmp_path}/open/x", f"file://{tmp_path}/open/x", f"sqlite:///{tmp_path}/open/x.db"):
        allowed.check_place(good, "place")
    for bad in (
        f"{tmp_path}/own/x", f"{tmp_path}/open/../own/x", f"{tmp_path}/open/link/x", f"file://{tmp_path}/own/x", "/etc/passwd", "file:/etc",
        f"sqlite:///{tmp_path}/own/coordinator.db", f"sqlite:///file:{tmp_path}/own/coordinator.db?uri=true&mode=ro",
        f"sqlite+pysqlite:///{tmp_path}/own/%63oordinator.db", f"local://{tmp_path}/own/x",
    ):  # fmt: skip
        with pytest.raises(NotAllowed, match=r"^place: "):
            allowed.check_place(bad, "place")
    for own in (
        "/proc/self/environ",
        "/proc/1/root/etc",
        "/proc/self/root/etc",
        "/dev/fd/0",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
    ):
        with pytest.raises(NotAllowed, match="closed to documents"):
            Allowed().check_place(own, "place")
    own_places = {
        "TIDEMARK_BLOBS": "/b",
        "TIDEMARK_SECRETS": "/s",
        "TIDEMARK_SIGNING_KEYS_FILE": "/k",
        "TIDEMARK_STORE": "sqlite:////c.db",
    }
    for own in ("/b/x", "/s/x", "/k", "sqlite:////c.db"):
        with pytest.raises(NotAllowed, match="closed to documents"):
            read_allowed(own_places).check_place(own, "place")
    with pytest.raises(NotAllowed, match="closed to documents"):
        Allowed(closed=(str(tmp_path / "own"),)).check_place(f"{tmp_path}/own", "place")


def test_schemes_are_those_that_are_named() -> None:
    """A list of schemes; without it all, but chains of them never."""
    allowed = Allowed(schemes=("s3", "file"))
    allowed.check_place("s3://bucket/x", "place")
    allowed.check_place("/some/path", "place")
    for bad in ("https://host.example/x", "gs://bucket/x"):
        with pytest.raises(NotAllowed, match=r"expected s3, file \(schemes"):
            allowed.check_place(bad, "place")
    for chain in (
        "simplecache::s3://bucket/x",
        "zip://a.csv::s3://bucket/x",
        "zip://a::file",
        "s3://a::simplecache::file:///etc",
    ):
        with pytest.raises(NotAllowed, match="chained"):
            Allowed().check_place(chain, "place")


@pytest.mark.parametrize(
    "path", ["os:system", "os.path:join", "subprocess:Popen", "tidemark.shared.process.settings:X"]
)
def test_classes_come_from_modules_of_users(path: str) -> None:
    """Nothing of the standard library or of the product's insides is imported for a document."""
    with pytest.raises(NotAllowed, match="no computations of users"):
        Allowed().check_class(path)


@pytest.mark.parametrize(
    "path", ["a b:C", "../x:C", "a:C()", "a", ":C", "a:", "a.:C", ".a:C", "a:C.d", "a;b:C", "a:C\n"]
)
def test_a_class_has_a_plain_name(path: str) -> None:
    """Anything else is refused before it is looked for."""
    with pytest.raises(NotAllowed, match="plain names"):
        Allowed().check_class(path)


def test_modules_are_those_that_are_named() -> None:
    """Each with what is below it."""
    allowed = Allowed(modules=("mine", "ours.good"))
    for good in ("mine:C", "mine.deep:C", "ours.good:C"):
        allowed.check_class(good)
    for bad in ("mines:C", "ours:C", "ours.bad:C"):
        with pytest.raises(NotAllowed, match="modules of TIDEMARK_ALLOW"):
            allowed.check_class(bad)


def test_values_are_secrets_and_open_variables(tmp_path: Path) -> None:
    """A file of the store, a variable with the prefix, or a variable that is opened by name; nothing else of the environment."""
    (tmp_path / "FILED").write_text("from a file\n")
    environment = {
        "TIDEMARK_SECRETS": str(tmp_path), "TIDEMARK_SECRET_KEPT": "from a variable", "KAFKA": "host:1", "OTHER": "x",
        "TIDEMARK_STORE": "postgresql://u:word@h/db",
    }  # fmt: skip
    values = SecretValues.of(environment)
    assert dict(values) == {"FILED": "from a file", "KEPT": "from a variable", "KAFKA": "host:1"}
    for name in ("OTHER", "TIDEMARK_STORE", "TIDEMARK_SECRET_KEPT", "TIDEMARK_SECRETS"):
        assert name not in values
    (tmp_path / "FILED").write_text("replaced")
    assert values["FILED"] == "replaced"


def test_a_document_names_connections_and_no_secrets() -> None:
    """`${NAME}` in its own connections is an open variable; of the registry's it may be a secret."""
    own = """
connections: {out: {type: files, path: "/data/${PASSWORD}"}, kafka: {type: kafka, bootstrapServers: "${KAFKA}"}}
pipeline: [{$source: {connectionName: kafka, topic: t}}, {$emit: {connectionName: out, path: x, format: json}}]
"""
    with pytest.raises(PlanRefusal, match=r"connections\.out: \$\{PASSWORD\} is not open to documents"):
        plan_for_coordinator("local", own, {}, None, {})
    plan_for_coordinator("local", own, {}, None, {}, allowed=Allowed(variables=("PASSWORD", "KAFKA")))
    named = own.replace('out: {type: files, path: "/data/${PASSWORD}"}, ', "")
    kept = {"out": '{"type": "files", "path": "/data/${PASSWORD}"}'}
    planned = plan_for_coordinator("local", named, {}, None, kept)
    assert "${PASSWORD}" in planned.document


COMPUTES = """
connections: {o: {type: files, path: /out}}
pipeline: [{$source: {documents: [{a: 1}]}}, {$compute: {class: "os:system", key: $a}},
           {$emit: {connectionName: o, path: x, format: json}}]
"""
READS = """
connections: {k: {type: kafka, bootstrapServers: "169.254.169.254:9092"}, o: {type: files, path: /out}}
pipeline: [{$source: {connectionName: k, topic: t}}, {$emit: {connectionName: o, path: x, format: json}}]
"""


@pytest.mark.parametrize(("document", "words"), [(COMPUTES, "no computations"), (READS, r"169\.254\.169\.254")])
def test_what_a_document_may_not_reach_is_refused_when_it_is_created(document: str, words: str) -> None:
    """At once, with the place, as far as it is known before values are put in."""
    with pytest.raises(PlanRefusal, match=words):
        plan_for_coordinator("local", document, {}, None, {})


def test_a_worker_looks_at_what_values_lead_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable or secret may hold an address that is closed: the worker refuses it, whatever the coordinator saw."""
    processor = parse(
        'connections: {k: {type: kafka, bootstrapServers: "${KAFKA}"}}\npipeline: [{$source: {connectionName: k, topic: t}}, '
        "{$emit: {connectionName: k, topic: u}}]"
    )
    monkeypatch.setenv("KAFKA", "127.0.0.1:9092")
    monkeypatch.delenv("TIDEMARK_ALLOW", raising=False)
    with pytest.raises(NotAllowed, match=r"connections\.k\.bootstrapServers: 127\.0\.0\.1"):
        Connections("w").get(processor, "k")
    monkeypatch.setenv("TIDEMARK_ALLOW", '{"loopback": true}')
    assert Connections("w").get(processor, "k").settings["bootstrapServers"] == "127.0.0.1:9092"


def test_a_wrong_list_is_said() -> None:
    """Unknown names, wrong types: a sentence."""
    with pytest.raises(ProcessSettingsError, match=r"TIDEMARK_ALLOW\.folder: no such setting; did you mean folders"):
        read_allowed({"TIDEMARK_ALLOW": '{"folder": []}'})


_FOR_DOTS = (".", "\u3002", "\uff0e", "\uff61")
_SCHEMES = ("http", "HTTPS", "http:\t", "http\\", "postgresql", "postgresql+psycopg", "mongodb")
_BEFORE = (
    "",
    "a@",
    "e.example,",
    "e.example:80/@",
    "e.example:80?@",
    "a:b@",
    "e.example@",
    "e.example#@",
    "e.example?@",
    "e.example\\@",
    "e.example/@",
    "e.example:80@",
    "[::1]@",
)
_AFTER = ("", "/", ":80", "?x", "#x", "\\", "/@e.example", "\\@e.example", "#@e.example", ",e.example", ":80,e.example")


def _written(host: str, draw: random.Random) -> str:
    """The host as a client may take it, too: in other letters, with other dots."""
    found = "".join(chr(0xFF10 + int(c)) if c.isdecimal() and draw.random() < 0.2 else c for c in host)
    found = "".join(draw.choice(_FOR_DOTS) if c == "." and draw.random() < 0.3 else c for c in found)
    return "".join(chr(0x24D0 + ord(c) - 97) if "a" <= c <= "z" and draw.random() < 0.1 else c for c in found)


@pytest.mark.parametrize("seed", range(4))
def test_no_form_of_a_url_leads_a_client_here(seed: int) -> None:
    """Where the check lets a URL through, the clients that read URLs find no address of this machine in it, and no other error comes."""
    draw = random.Random(seed)
    passed = 0
    for _ in range(400):
        host = draw.choice((*HERE, *LINK, "e.example", "127.0.0.1", "localhost"))
        host = _written(bracketed(host), draw) if draw.random() < 0.5 else bracketed(host)
        given = f"{draw.choice(_SCHEMES)}://{draw.choice(_BEFORE)}{host}{draw.choice(_AFTER)}"
        try:
            Allowed().check_place(given, "connections.c.url")
        except NotAllowed:
            continue
        passed += 1
        for name in _hosts_of(given):
            Allowed().check_place(f"http://{bracketed(name)}", "the host that a client finds")
    assert passed


def _hosts_of(url: str) -> Iterator[str]:
    """The hosts that libraries find in a URL, as far as they take it for one."""
    found = None
    with suppress(ValueError, sa.exc.ArgumentError):
        found = yarl.URL(url).host if url.lower().startswith("http") else sa.make_url(url).host
    yield from (found or "").split(",") if found else ()


@pytest.mark.parametrize("place", ["sqlite:///a%00b", "file:///a%00b", "sqlite:///file:a%00"])
def test_a_path_that_no_system_has_is_refused(place: str) -> None:
    """A null character, however it is written, is a refusal and no other error."""
    with pytest.raises(NotAllowed, match="where it leads cannot be seen"):
        Allowed().check_place(place, "connections.c.url")


@pytest.mark.parametrize("host", ["\x00a:9092", "a\x7f:9092", "127.0.0.1\x00:9092", "a\u200b:9092"])
def test_a_host_has_letters_that_are_seen(host: str) -> None:
    """A character that cannot be printed is a refusal and no other error."""
    with pytest.raises(NotAllowed, match="expected printable ASCII"):
        Allowed().check_connection(Connection("c", "kafka", {"bootstrapServers": host}))
