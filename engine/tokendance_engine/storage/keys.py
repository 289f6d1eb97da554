"""Keys: who may find what.

A key starts with everything that must agree (model, scope, owner), so a hash of other content, another tenant or
another model can never match; token ids are compared on a hit all the same.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.layout import Model

KEY_BYTES = 16


class Scope(StrEnum):
    """Whose requests may find a stored segment."""

    SESSION = "session"
    TENANT = "tenant"
    PUBLIC = "public"


def digest(*parts: bytes, key: bytes = b"") -> bytes:
    """16 bytes; parts are delimited, so no two different lists collide by concatenation."""
    made = hashlib.blake2b(digest_size=KEY_BYTES, key=key)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


@dataclass(frozen=True, slots=True)
class FamilyKey:
    """Names one session of one tenant; the tenant's salt is in it only as a keyed hash."""

    owner: bytes
    session: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Makes every key of one engine process.

    Attributes:
        model: what the KV belongs to.
        scope: who may find segments.
        secret: key of the salt hash. To find spilled families after a restart it must be the same one
            (`secret_file`).
    """

    model: Model
    scope: Scope
    secret: bytes

    def family(self, salt: str, session: str) -> FamilyKey:
        """The family of a session."""
        return FamilyKey(digest(b"salt", salt.encode(), key=self.secret), session)

    def scope_id(self, family: FamilyKey) -> bytes:
        """Namespace of a family's segments."""
        owner = b"" if self.scope is Scope.PUBLIC else family.owner
        session = family.session.encode() if self.scope is Scope.SESSION else b""
        return digest(self.model.digest(), self.scope.encode(), owner, session)

    def mirror(self, family: FamilyKey, agent: str) -> bytes:
        """Key of one member's mirror; never shared, whatever the scope."""
        return self._of(family, b"mirror", agent.encode())

    def master(self, family: FamilyKey) -> bytes:
        """Key of a family's master."""
        return self._of(family, b"master")

    def roster(self, family: FamilyKey) -> bytes:
        """Key of the list of a family's members."""
        return self._of(family, b"roster")

    def _of(self, family: FamilyKey, *what: bytes) -> bytes:
        return digest(*what, self.model.digest(), family.owner, family.session.encode())


def segment_key(scope_id: bytes, context: bytes, first: int, tokens: Tokens) -> bytes:
    """Key of a token run computed after `context`, its first token at position `first`."""
    return digest(b"segment", scope_id, _after(context, first, tokens))


def context_after(context: bytes, first: int, tokens: Tokens) -> bytes:
    """Context id of what follows these tokens; the empty context is b""."""
    return _after(context, first, tokens)


def _after(context: bytes, first: int, tokens: Tokens) -> bytes:
    ids = np.ascontiguousarray(tokens, dtype=np.int32).tobytes()
    return digest(context, first.to_bytes(8, "little"), ids)


def secret_file(path: Path) -> bytes:
    """Read a 32-byte secret, or make one that only this user can read.

    Raises:
        OSError: the file can be neither read nor made.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(made, "wb") as file:
        secret = secrets.token_bytes(32)
        file.write(secret)
    return secret
