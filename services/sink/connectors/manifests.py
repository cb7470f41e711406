"""Manifests: they list the released files, and readers follow them (protocol, S4).

Below a destination's root:

- `_staged/<identity>/<label>-<attempt>-<k>/….staged`: immutable files that are not released; being there says nothing. Many
  readers take each file of a suffix below a folder, whatever its folder is called: so the last suffix is none of a format.
- every name that does not begin with `_`: released files, which got these names by a rename.
- `_manifests/<identity>/<epoch>.json`: one for each released checkpoint of an identity, empty ones too, created complete and only if
  absent. The union of them is all released output. The highest is the identity's marker.
- `_volumes/<identity>/<epoch>.json.gz`: the oldest manifests of an identity, so many in one file, up to this epoch; then they are deleted.
- `_manifest.json`: a summary for people and tools, rebuilt from the manifests, never read by the product.

A manifest is a function of the commit alone, so that every writer writes the same bytes. A sink lists the manifests that are in no volume
yet: time and memory depend on their number, not on the size of all released output. A zombie may write a manifest again that is in a
volume: it says the same.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct, structs

from tidemark.services.sink.connectors.destination import Destination, sha256
from tidemark.services.sink.connectors.staging import StagedFile
from tidemark.shared.model.formats import MANIFEST, VOLUME, FormatError, JsonCodec
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable

STAGED: Final = "_staged"
STAGED_SUFFIX: Final = ".staged"
MANIFESTS: Final = "_manifests"
VOLUMES: Final = "_volumes"
SUMMARY: Final = "_manifest.json"
EPOCH_DIGITS: Final = 20
"""Epochs in names are padded so that names sort as numbers do."""


class Manifest(Struct, frozen=True, kw_only=True):
    """The files and rows that one identity released with one checkpoint."""

    version: int = MANIFEST.version
    identity: str
    job: str
    vertex: str
    index: int
    epoch: int
    predecessor: int | None
    """The checkpoint before; None where the identity begins."""
    final: bool = False
    format: str
    rows: int
    files: tuple[StagedFile, ...]


class Earlier(Struct, frozen=True):
    """The totals of an identity's volumes, up to an epoch."""

    until: int
    rows: int = 0
    files: int = 0


class Volume(Struct, frozen=True, kw_only=True):
    """Manifests of one identity, one behind the other. `total`: of this and all volumes before it."""

    version: int = VOLUME.version
    identity: str
    total: Earlier
    manifests: tuple[Manifest, ...]


_CODEC: Final[JsonCodec[Manifest]] = JsonCodec(MANIFEST, Manifest)
_VOLUMES: Final[JsonCodec[Volume]] = JsonCodec(VOLUME, Volume)


def manifest_name(identity: str, epoch: Epoch) -> str:
    """The one name of a manifest."""
    return f"{MANIFESTS}/{identity}/{epoch:0{EPOCH_DIGITS}d}.json"


def volume_name(identity: str, until: int) -> str:
    """The one name of a volume."""
    return f"{VOLUMES}/{identity}/{until:0{EPOCH_DIGITS}d}.json.gz"


def decode_volume(name: str, data: bytes) -> Volume:
    """A volume's content. TargetRefused if it is damaged or later than this version."""
    try:
        volume = _VOLUMES.decode(gzip.decompress(data))
    except (FormatError, OSError, EOFError, zlib.error) as error:
        raise TargetRefused(f"{name}: {error}") from error
    if volume_name(volume.identity, volume.total.until) != name:
        raise TargetRefused(f"{name}: says that it is of {volume.identity} up to {volume.total.until}; was it copied?")
    return volume


def visible_name(staged: str) -> str:
    """Under which name readers find a staged file once it is released: it begins with the place of its writer and its epoch.

    `_staged/<job>.<vertex>.<index>/<label>-<attempt>-<k>/<partition>/part-<n>.<suffix>.staged` becomes
    `<partition>/<vertex>-<index>-<label>-<attempt>-<k>-<n>.<suffix>`. A name of an older layout, which is visible as it is, stays.
    """
    parts = staged.split("/")
    if parts[0] != STAGED:
        return staged
    _, identity, folder, *partition, file = parts
    _, _, rest = identity.partition(".")
    vertex, _, index = rest.rpartition(".")
    return "/".join([*partition, f"{vertex}-{index}-{folder}-{file.removeprefix('part-').removesuffix(STAGED_SUFFIX)}"])


def epoch_of(name: str) -> Epoch:
    """The epoch in a manifest's name. TargetRefused for a name that is none."""
    stem = name.rpartition("/")[2].removesuffix(".json")
    if len(stem) != EPOCH_DIGITS or not stem.isdigit():
        raise TargetRefused(
            f"{name}: expected {EPOCH_DIGITS} digits and .json; a manifests folder holds nothing else: move it away"
        )
    return Epoch(int(stem))


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON with sorted keys: equal manifests have equal bytes."""
    return (
        json.dumps(msgspec.to_builtins(manifest), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        + b"\n"
    )


def decode_told(name: str, data: bytes | str) -> Manifest:
    """Decode a manifest. TargetRefused if it is damaged or of a version that is not read."""
    try:
        return _CODEC.decode(data)
    except FormatError as error:
        raise TargetRefused(f"{name}: {error}") from error


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Decode the manifest of this name. TargetRefused; also if it belongs to another name."""
    manifest = decode_told(name, data)
    if manifest_name(manifest.identity, Epoch(manifest.epoch)) != name:
        raise TargetRefused(f"{name}: says that it is epoch {manifest.epoch} of {manifest.identity}; was it copied?")
    return manifest


def seen(manifest: Manifest) -> Manifest:
    """With the names under which readers find the files."""
    files = tuple(structs.replace(file, name=visible_name(file.name)) for file in manifest.files)
    return structs.replace(manifest, files=files)


def show(destination: Destination, manifest: Manifest) -> Manifest:
    """Give the files of a manifest the names under which readers find them; with these."""
    for file in manifest.files:
        if file.name.startswith(f"{STAGED}/"):
            destination.publish(file.name, visible_name(file.name))
    return seen(manifest)


class Releases(Protocol):
    """The released output of one destination, and each identity's marker. Functions block."""

    def marker(self, identity: str) -> Epoch | None:
        """The highest epoch released, durable from now on; None for an identity without a marker."""
        ...

    def publish(self, manifest: Manifest) -> None:
        """The staged files of a manifest get their visible names and are released, and the marker stands at its epoch.

        Any number of times with the same effect. TargetRefused where another history was released.
        """
        ...

    def listed(self, identity: str, marker: Epoch) -> set[str] | None:
        """Staged files that released manifests still name; None where this is not known for certain."""
        ...

    def clear(self, staged: Sequence[str]) -> None:
        """Delete staged files that no release needs, and what became visible beside a release because of them."""
        ...

    def settle(self) -> None:
        """Bring the summary for people up to date."""
        ...

    def convert(self) -> None:
        """Make the output of an earlier version, which lay below `_staged`, visible; nothing where there is none."""
        ...

    def close(self) -> None:
        """Let go of clients."""
        ...


class ManifestStore:
    """`Releases` by manifests: those at one destination. They never change, so each is read once, as far as they are kept. Functions block.

    kept_max: manifests that are kept; those that come later are read again. rounds_max: how often the summary is built anew because
    manifests came meanwhile. volume_manifests: an identity that has twice so many puts the older half into a volume.
    """

    def __init__(
        self,
        destination: Destination,
        kept_max: int = 100_000,
        rounds_max: int = 16,
        volume_manifests: int = 1_000,
    ) -> None:
        self._destination = destination
        self._kept_max = kept_max
        self._rounds_max = rounds_max
        self._volume_manifests = volume_manifests
        self._read: dict[str, Manifest] = {}
        self._loose: Counter[str] = Counter()
        """Manifests of an identity that are in no volume, about."""

    def names(self, identity: str | None = None) -> list[str]:
        """Names of all manifests that are in no volume, or of one identity's, in the order of identity and epoch."""
        return self._destination.names(MANIFESTS if identity is None else f"{MANIFESTS}/{identity}")

    def marker(self, identity: str) -> Epoch | None:
        """The highest epoch released, durable from now on; None for an identity without manifests."""
        names = self.names(identity)
        if not names:
            return None
        # The writer that linked it may have died before the folder was forced to disk, and the coordinator forgets what it is told.
        self._destination.settle(names)
        self._loose[identity] = len(names)
        return epoch_of(names[-1])

    def get(self, name: str) -> Manifest:
        """A manifest by its name."""
        if name not in self._read:
            data = self._destination.read(name)
            if data is None:
                raise TargetUnavailable(f"{self._destination.uri(name)}: listed, but not there")
            return self._keep(name, decode_manifest(name, data))
        return self._read[name]

    def _keep(self, name: str, manifest: Manifest) -> Manifest:
        # A summary reads all manifests, one after the other: one that made room for the next would be read again each time.
        if name in self._read or len(self._read) < self._kept_max:
            self._read[name] = manifest
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Create it. One that is there already must say the same: TargetRefused names both otherwise."""
        manifest = show(self._destination, manifest)
        name = manifest_name(manifest.identity, Epoch(manifest.epoch))
        data = encode_manifest(manifest)
        if not self._destination.create(name, data):
            there = self._destination.read(name)
            if there is not None and encode_manifest(seen(decode_manifest(name, there))) == data:
                # An earlier version wrote it.
                self._destination.replace(name, data)
                self._keep(name, manifest)
                return
            raise TargetRefused(
                f"{self._destination.uri(name)}: expected the manifest with digest {sha256(data)}, found"
                f" {'none' if there is None else sha256(there)}: another history wrote here; nothing is overwritten"
            )
        self._keep(name, manifest)
        self._loose[manifest.identity] += 1
        if self._loose[manifest.identity] >= 2 * self._volume_manifests:
            self._bind(manifest.identity)

    def _bind(self, identity: str) -> None:
        """Put the oldest manifests into volumes, and delete them once these are durable.

        The content of a volume is a function of the chain: two writers at the same time write the same.
        """
        manifests = [self.get(name) for name in self.names(identity)]
        begin = self._begin(manifests)
        count = self._volume_manifests
        # Else the listing was not whole, or another has done it.
        while begin is not None and len(manifests) - begin >= 2 * count:
            chosen = manifests[begin : begin + count]
            total = total_of(chosen, self._total(identity, chosen[0].predecessor))
            self._create(Volume(identity=identity, total=total, manifests=tuple(chosen)))
            self.forget([manifest_name(identity, Epoch(m.epoch)) for m in manifests[: begin + count]])
            manifests, begin = manifests[begin + count :], 0
        self._loose[identity] = len(manifests)

    def _create(self, volume: Volume) -> None:
        name = volume_name(volume.identity, volume.total.until)
        if not self._destination.create(name, gzip.compress(_VOLUMES.encode(volume), mtime=0)):
            there = self._volume(volume.identity, volume.total.until)
            if there is None or (there.total, there.manifests[-1]) != (volume.total, volume.manifests[-1]):
                raise TargetRefused(
                    f"{self._destination.uri(name)}: has other manifests than {MANIFESTS}: another history wrote here"
                )
        # The writer that linked it may have died before the folder was forced to disk.
        self._destination.settle([name])

    def _begin(self, manifests: Sequence[Manifest]) -> int | None:
        """Where the chain of the last manifest begins: at an identity's first, or behind a volume. None if a manifest is missing.

        In front of it lie only manifests that are in a volume, and were written again.
        """
        at = len(manifests) - 1
        while at > 0 and manifests[at].predecessor == manifests[at - 1].epoch:
            at -= 1
        if at < 0:
            return None
        first = manifests[at]
        whole = at == 0 and first.predecessor is None
        return at if whole or self._total(first.identity, first.predecessor) is not None else None

    def _total(self, identity: str, until: int | None) -> Earlier | None:
        """The totals of the volumes up to this epoch; None if no volume ends there."""
        volume = None if until is None else self._volume(identity, until)
        return None if volume is None else volume.total

    def _volume(self, identity: str, until: int) -> Volume | None:
        name = volume_name(identity, until)
        data = self._destination.read(name)
        return None if data is None else decode_volume(name, data)

    def bound(self) -> list[Manifest]:
        """The manifests in volumes, in the order of identity and epoch: for readers of all released output."""
        found: list[Manifest] = []
        for name in self._destination.names(VOLUMES):
            data = self._destination.read(name)
            if data is None:
                raise TargetUnavailable(f"{self._destination.uri(name)}: listed, but not there")
            found += decode_volume(name, data).manifests
        return found

    def listed(self, identity: str, marker: Epoch) -> set[str] | None:
        """All files that an identity's manifests up to this one list; None if the listing was not whole.

        Each manifest names the one before it. So a listing that lacks one is noticed, even if the store promises nothing about listings.
        """
        manifests = [self.get(name) for name in self.names(identity)]
        if self._begin(manifests) is None or manifests[-1].epoch < marker:
            return None
        return {file.name for manifest in manifests for file in manifest.files}

    def clear(self, staged: Sequence[str]) -> None:
        """See `Releases.clear`."""
        self._destination.delete(staged)

    def settle(self) -> None:
        """See `Releases.settle`."""
        self.summarise()

    def close(self) -> None:
        """See `Releases.close`."""

    def convert(self) -> None:
        """See `Releases.convert`: files get their names, then the manifest names them so."""
        for name, manifest in self.older():
            changed = show(self._destination, manifest)
            self._destination.replace(name, encode_manifest(changed))
            self._read[name] = changed

    def older(self) -> list[tuple[str, Manifest]]:
        """Manifests of an earlier version, with their names."""
        found = [(name, self.get(name)) for name in self.names()]
        return [(name, m) for name, m in found if any(file.name.startswith(f"{STAGED}/") for file in m.files)]

    def forget(self, names: Sequence[str]) -> None:
        """Delete manifests of which something else tells now."""
        self._destination.delete(names)
        for name in names:
            self._read.pop(name, None)

    def summarise(self) -> None:
        """Rebuild `_manifest.json` from all manifests.

        Manifests that came while it was written make it start again: so the last of several writers leaves it complete.
        """
        for _ in range(self._rounds_max):
            names = self.names()
            manifests = [self.get(name) for name in names]
            self._destination.replace(SUMMARY, summary_of(manifests, self._earlier(manifests)))
            if self.names() == names:
                return

    def _earlier(self, manifests: Iterable[Manifest]) -> dict[str, Earlier]:
        """The totals of the volumes, by identity."""
        found: dict[str, Earlier] = {}
        for identity, chain in groupby(manifests, key=lambda manifest: manifest.identity):
            its = list(chain)
            begin = self._begin(its)
            if begin is not None and (total := self._total(identity, its[begin].predecessor)) is not None:
                found[identity] = total
        return found


def total_of(manifests: Iterable[Manifest], before: Earlier | None = None) -> Earlier:
    """The total of at least one manifest, in the order of epochs, added to `before`."""
    total = before or Earlier(0)
    for manifest in manifests:
        total = Earlier(manifest.epoch, total.rows + manifest.rows, total.files + len(manifest.files))
    return total


def summary_of(manifests: Sequence[Manifest], earlier: Mapping[str, Earlier]) -> bytes:
    """The content of `_manifest.json` for these manifests, in the order of identity and epoch, and for those in volumes, by identity."""
    markers: dict[str, int] = {}
    files: list[dict[str, Any]] = []
    for manifest in manifests:
        if manifest.identity in earlier and manifest.epoch <= earlier[manifest.identity].until:
            continue
        markers[manifest.identity] = max(manifest.epoch, markers.get(manifest.identity, 0))
        files += [
            {
                "path": file.name,
                "rows": file.rows,
                "bytes": file.size_bytes,
                "sha256": file.digest,
                "partition": file.partition,
                "epoch": manifest.epoch,
                "identity": manifest.identity,
            }
            for file in manifest.files
        ]
    content: dict[str, Any] = {
        "version": 1,
        "format": sorted({manifest.format for manifest in manifests}),
        "rows": sum(file["rows"] for file in files) + sum(before.rows for before in earlier.values()),
        "released": dict(sorted(markers.items())),
        "final": sorted(manifest.identity for manifest in manifests if manifest.final),
        "files": files,
    }
    if earlier:
        content["earlier"] = {
            identity: {"volumes": f"{VOLUMES}/{identity}", **msgspec.to_builtins(before)}
            for identity, before in sorted(earlier.items())
        }
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
