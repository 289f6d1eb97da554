"""Families in a tier: rows are written once under random names, and documents say who is made of what.

A member's document is found by its key alone, without a directory, and so after a restart too. Anything that is not
there, or not what was written, is a counted miss.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from tokendance_engine.storage.codec import Bytes, Kind, pack, unpack
from tokendance_engine.storage.documents import Documents
from tokendance_engine.storage.errors import BlobError
from tokendance_engine.storage.family import Family
from tokendance_engine.storage.keys import KEY_BYTES, FamilyKey, Keys, Scope
from tokendance_engine.storage.manifest import (
    Need,
    RowsOf,
    SegmentOf,
    master_manifest,
    mirror_manifest,
    needs,
    read_master,
    read_mirror,
)
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.objects import CHUNK_BYTES, Objects
from tokendance_engine.storage.rows import Rows
from tokendance_engine.storage.tiers import Tier

MakeRoom = Callable[[int], bool]
"""Asked for bytes before they are allocated; False: there is no room."""

Made = TypeVar("Made", Mirror, Master)


@dataclass(slots=True)
class SpillCounts:
    """How often things happened; `broken` by `BlobError.reason`."""

    saved_rows: int = 0
    failed_saves: int = 0
    hits: int = 0
    misses: int = 0
    no_room: int = 0
    broken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BlobError.REASONS, 0))


@dataclass(frozen=True, slots=True)
class _Saved:
    """A document that is in the tier now, and the one it replaced, if any."""

    document: Bytes
    replaced: Bytes | None


class Spill:
    """Writes families to a tier and reads members back.

    Args:
        keys: names and model of this engine.
        tier: where blobs go.
        chunk_bytes: largest payload of a blob; the staging buffer has about this size.
    """

    def __init__(self, keys: Keys, tier: Tier, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.counts = SpillCounts()
        self._keys = keys
        self._layout = keys.model.layout
        self._tier = tier
        self._objects = Objects(tier, keys.model.digest(), chunk_bytes)
        self._documents = Documents(self._objects)
        self._names: WeakKeyDictionary[Rows, bytes] = WeakKeyDictionary()

    @property
    def staging_bytes(self) -> int:
        """Memory that it holds for good."""
        return self._objects.staging_bytes

    def save(self, key: FamilyKey, family: Family) -> None:
        """Write what the tier does not hold of a family; returns when it is confirmed, or counted as failed.

        What only the replaced documents named is deleted.
        """
        known = self._agents(key)
        made = [self._save_mirror(key, agent, mirror) for agent, mirror in family.mirrors.items()]
        if family.master is not None and len(family.master):
            rows = [segment.rows for segment in family.master.segments]
            made.append(self._save(self._keys.master(key), rows, master_manifest(family.master, self._name)))
        if family.mirrors.keys() - known:
            self._put(self._keys.roster(key), pack({"agents": sorted(known | family.mirrors.keys())}, []))
        kept = {need.name for each in made if each is not None for need in needs(each.document)}
        # Segments may be named by documents of other sessions, and of members that are only in the tier.
        alone = self._keys.scope is Scope.SESSION and None not in made and known <= family.mirrors.keys()
        for each in made:
            if each is not None and each.replaced is not None:
                self._forget(each.replaced, lambda need: need.name not in kept and (alone or not need.shared))

    def load_mirror(
        self, key: FamilyKey, agent: str, family: Family | None, make_room: MakeRoom
    ) -> Mirror | None:
        """Read a member's mirror, or None.

        Args:
            family: what memory holds of it; rows that are there are used, not read.
            make_room: asked once, for all that will be allocated.
        """
        return self._load(self._keys.mirror(key, agent), family, make_room, read_mirror)

    def load_master(self, key: FamilyKey, family: Family | None, make_room: MakeRoom) -> Master | None:
        """Read a family's master, or None; its id is -1, rows of no computation that the engine knows."""
        return self._load(self._keys.master(key), family, make_room, read_master)

    def delete(self, key: FamilyKey) -> None:
        """Forget a family; segments that other sessions may find stay."""
        for agent in self._agents(key):
            self._delete(self._keys.mirror(key, agent))
        self._delete(self._keys.master(key))
        self._delete(self._keys.roster(key))

    def close(self) -> None:
        """Close the tier; what it holds stays."""
        self._tier.close()

    def _name(self, rows: Rows) -> bytes:
        return self._names.setdefault(rows, secrets.token_bytes(KEY_BYTES))

    def _save_mirror(self, key: FamilyKey, agent: str, mirror: Mirror) -> _Saved | None:
        rows = [*mirror.parts, *(segment.rows for segment in mirror.references.segments)]
        return self._save(self._keys.mirror(key, agent), rows, mirror_manifest(mirror, self._name))

    def _save(self, name: bytes, rows: Iterable[Rows], document: Bytes) -> _Saved | None:
        for each in rows:
            if not self._objects.has(self._name(each), each.nbytes):
                if not self._objects.write(Kind.ROWS, self._name(each), as_bytes(each)):
                    self.counts.failed_saves += 1
                    return None
                self.counts.saved_rows += len(each)
        replaced = self._read(name)
        return _Saved(document, replaced) if self._put(name, document) else None

    def _put(self, name: bytes, document: Bytes) -> bool:
        try:
            done = self._documents.put(name, document)
        except BlobError as error:
            self.counts.broken[error.reason] += 1
            done = False
        self.counts.failed_saves += not done
        return done

    def _read(self, name: bytes) -> Bytes | None:
        try:
            return self._documents.get(name)
        except BlobError as error:
            self.counts.broken[error.reason] += 1
            return None

    def _load(
        self,
        name: bytes,
        family: Family | None,
        make_room: MakeRoom,
        build: Callable[[Bytes, RowsOf, SegmentOf], Made],
    ) -> Made | None:
        document = self._read(name)
        if document is None:
            self.counts.misses += 1
            return None
        segments = {id(s.rows): s for s in family.segments()} if family is not None else {}
        rows = {self._names[s.rows]: s.rows for s in segments.values() if s.rows in self._names}
        try:
            lacking = [need for need in needs(document) if need.name not in rows]
            if not make_room(
                len(document) + sum(need.rows * (self._layout.row_bytes + 4) for need in lacking)
            ):
                self.counts.no_room += 1
                return None
            for need in lacking:
                made = Rows(self._layout.empty(need.rows))
                if not self._objects.read(Kind.ROWS, need.name, as_bytes(made)):
                    self.counts.misses += 1
                    return None
                self._names[made] = need.name
                rows[need.name] = made
            built = build(document, lambda n, _: rows[n], lambda s: segments.setdefault(id(s.rows), s))
        except BlobError as error:
            self.counts.broken[error.reason] += 1
            return None
        self.counts.hits += 1
        return built

    def _agents(self, key: FamilyKey) -> set[str]:
        document = self._read(self._keys.roster(key))
        if document is None:
            return set()
        try:
            return set(unpack(document)[0]["agents"])
        except (BlobError, KeyError, TypeError):
            self.counts.broken["content"] += 1
            return set()

    def _delete(self, name: bytes) -> None:
        document = self._read(name)
        if document is not None:
            mine = self._keys.scope is Scope.SESSION
            self._forget(document, lambda need: mine or not need.shared)
        try:
            self._documents.delete(name)
        except BlobError as error:
            self.counts.broken[error.reason] += 1

    def _forget(self, document: Bytes, which: Callable[[Need], bool]) -> None:
        try:
            for need in needs(document):
                if which(need):
                    self._objects.delete(need.name, need.rows * self._layout.row_bytes)
        except BlobError:
            return


def as_bytes(rows: Rows) -> Bytes:
    """Rows as flat bytes, without a copy."""
    array: Bytes = rows.kv.reshape(-1).view(torch.uint8).numpy()
    return array
