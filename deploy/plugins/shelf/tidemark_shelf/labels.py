"""Documents of texts as labels: `id=7;place=a`."""

from tidemark.plugins import Document, Format, NoConfig


class Labels(Format[NoConfig]):
    """A record is names and values, `=` between them, `;` behind each but the last."""

    api = 1

    def decode(self, data: bytes) -> Document:
        """See `Format.decode`."""
        document: Document = {}
        for each in data.decode().split(";") if data else ():
            name, sign, value = each.partition("=")
            if not sign or "=" in value:
                raise ValueError("expected name=value, with ; between")
            document[name] = value
        return document

    def encode(self, document: Document) -> bytes:
        """See `Format.encode`."""
        for name, value in document.items():
            if not isinstance(value, str) or not set("=;").isdisjoint(name + value):
                raise ValueError(f"{name}: expected a text without = and ;")
        return ";".join(f"{name}={value}" for name, value in document.items()).encode()
