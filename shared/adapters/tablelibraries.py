"""Where the libraries of Delta Lake and Iceberg find a table: for those who write tables and those who read them."""

from collections.abc import Callable, Mapping
from typing import Any


def delta_place(filesystem: Any, path: str) -> tuple[str, dict[str, str]] | None:
    """The address of a folder, and the library's options for it; None where it finds nothing: it reads directories and S3.

    `filesystem` is fsspec's. Options are those of the connection, under the library's names. It finds missing ones in the environment, as
    s3fs does.
    """
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else {*filesystem.protocol}
    if protocols & {"file", "local"}:
        return path, {}
    if "s3" not in protocols:
        return None
    client = dict(filesystem.client_kwargs or {})
    endpoint = filesystem.endpoint_url or client.get("endpoint_url")
    options = {
        "AWS_ACCESS_KEY_ID": filesystem.key,
        "AWS_SECRET_ACCESS_KEY": filesystem.secret,
        "AWS_SESSION_TOKEN": filesystem.token,
        "AWS_REGION": client.get("region_name"),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true" if str(endpoint).startswith("http://") else None,
        "AWS_CONDITIONAL_PUT": "etag",
    }
    told = {name: str(value) for name, value in options.items() if value is not None}
    return path if path.startswith("s3://") else f"s3://{path}", told


def open_catalog(settings: Mapping[str, object], check: Callable[[str], None]) -> Any:
    """The catalog that a connection's `catalog` describes. `check` raises where documents may not reach a file. Raises as PyIceberg."""
    from tidemark.shared.adapters.icebergfiles import checked_catalog  # noqa: PLC0415 - a library that few need

    texts = {name: str(value) for name, value in settings.items()}
    return checked_catalog(texts.pop("name", "default"), texts, check)


def iceberg_name(folders: str) -> tuple[str, ...]:
    """The table that a path below a connection names: `a/b/counts` is `counts` of the namespace `a.b`; one without is of `default`."""
    parts = tuple(part for part in folders.split("/") if part)
    return parts if len(parts) > 1 else ("default", *parts)


def no_catalog(where: str) -> str:
    """The message for a table of Iceberg without a catalog."""
    return f"{where}: format iceberg needs a connection with a catalog, such as {{type: sql, uri: …}}"
