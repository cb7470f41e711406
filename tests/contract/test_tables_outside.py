"""Tables whose metadata, or whose catalog, leads out of what documents may reach, or names code."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.contract.sources_worlds import catalog_in
from tidemark.services.source.connectors.icebergtable import IcebergVersions
from tidemark.services.source.connectors.parquetcells import texts_of
from tidemark.services.source.connectors.tableversions import VersionRefused
from tidemark.shared.process.allowed import Allowed, NotAllowed

ROWS = pa.table({"a": pa.array([42], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """In a folder that documents may reach; beside it is one that they may not."""
    (tmp_path / "open" / "tables").mkdir(parents=True)
    (tmp_path / "closed").mkdir()
    pq.write_table(ROWS, tmp_path / "closed" / "secret.parquet")
    found = load_catalog(**catalog_in(tmp_path / "open"))
    found.create_namespace("n")
    yield found
    found.close()


def read(versions: IcebergVersions) -> list[bytes]:
    """The newest version's rows."""
    try:
        return [text for file in versions.files(versions.newest()) for batch in file.read() for text in texts_of(batch)]
    finally:
        versions.close()


def versions_in(root: Path, settings: dict[str, Any] | None = None, *hosts: str) -> IcebergVersions:
    """The table as a document reaches it."""
    allowed = Allowed(folders=(str(root / "open"),), loopback=True, hosts=hosts)
    return IcebergVersions(
        ("n", "t"), settings or catalog_in(root / "open"), lambda place: allowed.check_place(place, "$source")
    )


@pytest.mark.parametrize("form", ["{}/closed", "file:{}/closed", "file://{}/closed", "{}/open/../closed"])
def test_a_table_of_iceberg_gives_no_file_from_elsewhere(tmp_path: Path, catalog: SqlCatalog, form: str) -> None:
    """Its folder is one that may be read, and its metadata names any file."""
    table = catalog.create_table("n.t", ROWS.schema)
    table.append(ROWS)
    assert read(versions_in(tmp_path)) == [b'{"a":42}']
    table.add_files([f"{form.format(tmp_path)}/secret.parquet"])
    with pytest.raises(NotAllowed, match=r"\$source: .*closed/secret\.parquet: expected a path below"):
        read(versions_in(tmp_path))


def test_a_catalog_names_no_metadata_elsewhere(tmp_path: Path, catalog: SqlCatalog) -> None:
    """It is not even parsed: a message would show some of it."""
    (tmp_path / "closed" / "secret").write_text("password")
    catalog.create_namespace("m")
    table = catalog.create_table("m.t", ROWS.schema)
    moved = tmp_path / "closed" / Path(table.metadata_location).name
    moved.write_bytes(Path(table.metadata_location.removeprefix("file://")).read_bytes())
    catalog.register_table("n.t", str(moved))
    with pytest.raises(NotAllowed, match="expected a path below"):
        read(versions_in(tmp_path))


def test_settings_and_tables_name_no_code(tmp_path: Path, catalog: SqlCatalog) -> None:
    """PyIceberg would call whatever stands there with the properties: of `subprocess.Popen` they would be a command."""
    made = tmp_path / "made"
    code = {"/bin/sh": "", "-c": "", f"echo > {made}": "", "py-io-impl": "subprocess.Popen"}
    versions = versions_in(tmp_path, {**code, **catalog_in(tmp_path / "open")})
    with pytest.raises(VersionRefused, match="py-io-impl: a catalog's settings may not name code to load"):
        read(versions)
    with pytest.raises(ValueError, match="Could not initialize FileIO"):
        catalog.create_table("n.t", ROWS.schema, properties={"py-io-impl": "builtins.print"})
    assert read(versions_in(tmp_path)) == []
    assert not made.exists()


def test_a_server_names_no_code(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Of a catalog, that a document names by its URL."""
    table = catalog.create_table("n.t", ROWS.schema)
    table.append(ROWS)
    made = str(tmp_path / "made")
    auth = {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["/bin/sh", "-c", f"echo > {made}"]}}
    with served(table, {"auth": auth, "py-io-impl": "builtins.print"}) as url:
        assert read(versions_in(tmp_path, {"type": "rest", "uri": url})) == [b'{"a":42}']
    with (
        served(table, {"s3.endpoint": "http://169.254.169.254"}) as url,
        pytest.raises(NotAllowed, match=r"169\.254\.169\.254"),
    ):
        read(versions_in(tmp_path, {"type": "rest", "uri": url}))
    assert not Path(made).exists()


HOPS = ["/v1/config", "/v1/namespaces/n/tables/t", "/v1/oauth/tokens"]
TOKENS = "oauth2-server-uri"
SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "x",
    "client.access-key-id": "k",
    "client.secret-access-key": "s",
}


@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("hop", HOPS)
@pytest.mark.parametrize("settings", [{"credential": "user:password"}, {"credential": "user:password", **SIGNED}])
def test_a_server_leads_to_no_other_one_that_documents_may_not_reach(
    tmp_path: Path, catalog: SqlCatalog, hop: str, status: int, settings: dict[str, Any]
) -> None:
    """Each address is judged, not only the first one: of the catalog, of tokens. One that may be reached is."""
    table = catalog.create_table("n.t", ROWS.schema)
    table.append(ROWS)
    asked: list[str] = []
    with (
        served(table, {}, asked=asked) as other,
        served(table, {}, moved={hop: (status, other)}) as url,
        served(table, {}, moved={hop: (status, other.replace("127.0.0.1", "localhost"))}) as wrong,
    ):
        assert read(
            versions_in(tmp_path, {"type": "rest", "uri": url, **settings, TOKENS: url + HOPS[2]}, "127.0.0.1")
        ) == [b'{"a":42}']
        assert {path.partition("?")[0] for path in asked} == {hop}
        asked.clear()
        with pytest.raises(NotAllowed, match=r"\$source: host 'localhost': expected 127\.0\.0\.1"):
            read(
                versions_in(tmp_path, {"type": "rest", "uri": wrong, **settings, TOKENS: wrong + HOPS[2]}, "127.0.0.1")
            )
        assert not asked


class served:  # noqa: N801 - a context
    """A catalog of REST with one table, what it tells its clients to set, and what lies at another server; it notes what is asked."""

    def __init__(
        self,
        table: Table,
        overrides: dict[str, Any],
        moved: Mapping[str, tuple[int, str]] = MappingProxyType({}),
        asked: list[str] | None = None,
    ) -> None:
        answers = {
            "/v1/config": {"defaults": {}, "overrides": overrides},
            "/v1/oauth/tokens": {"access_token": "t", "token_type": "bearer", "expires_in": 3600},
            "/v1/namespaces/n/tables/t": {
                "metadata-location": table.metadata_location,
                "metadata": json.loads(table.metadata.model_dump_json()),
                "config": {"py-io-impl": "builtins.print"},
            },
        }

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if asked is not None:
                    asked.append(self.path)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                path = self.path.partition("?")[0]
                if path in moved:
                    self.send_response(moved[path][0])
                    self.send_header("location", moved[path][1] + self.path)
                    self.end_headers()
                    return
                told = answers.get(path)
                self.send_response(404 if told is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(told or {"error": {"message": "", "type": "", "code": 404}}).encode())

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
