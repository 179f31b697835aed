"""Access to a service over HTTP: bearer tokens, their roles, and limits of requests.

The file in the service's folder has the tokens' hashes. It is checked for every request, so that a
revoked token is refused at once.
"""

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from aggregator.operator.audit import note
from host.files import file_error, write_atomically
from host.loopback import is_loopback
from wire.errors import ConfigError
from wire.topics import check_name

log = logging.getLogger("shoal.aggregator")

FILE = "http-tokens.json"
SECRET_BYTES = 32
MOST_S = 10 * 366 * 86_400.0
OWNER = "the folder's owner"
"""Name in the audit log of a caller with the folder's own token (`aggregator.http.local`)."""

Role = Literal["viewer", "operator"]
"""A viewer may read everything. An operator may also give orders."""


@dataclass(frozen=True)
class Caller:
    """Person or program that has shown a valid token."""

    name: str
    """Name in the audit log."""
    role: Role


Verify = Callable[[str], Caller | None]
"""Returns the caller with this bearer token, or None if the token is not valid.

It is called for each request, in a thread that may wait, and raises `ShoalError` if it cannot
decide. `TokenFile` verifies Shoal's own tokens; an adapter for an identity provider would be
another implementation.
"""


@dataclass(frozen=True)
class Access:
    """Rules of access to the HTTP API."""

    verify: Verify
    required: Callable[[], bool]
    """Returns True if reading needs a token. Orders always need one."""
    note: Callable[[str, str, str, str], None]
    """Adds a line to the audit log: caller, request, outcome, reason."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic time (s)."""
    burst: float = 100.0
    """Maximum number of requests of one token at once; after that, `per_s` per second."""
    per_s: float = 20.0
    failed_burst: float = 10.0
    """Maximum number of requests of one address without a valid token at once.

    After that, `failed_per_s` per second.
    """
    failed_per_s: float = 0.2
    refused: Counter[str] = field(default_factory=Counter)
    """Number of refused requests, by reason."""


class HttpToken(msgspec.Struct, frozen=True):
    """Stored record of a token, without the token."""

    name: str
    role: Role
    hash: str
    """SHA-256 of the token, which is of 256 random bits and so needs no slow hash."""
    made_at_s: float
    expires_at_s: float | None = None
    """Unix time (s) of expiry; None if the token never expires."""

    def is_over(self, now_s: float) -> bool:
        """Return True if the token has expired."""
        return self.expires_at_s is not None and self.expires_at_s <= now_s


class TokenFile:
    """File with the tokens of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / FILE
        """Path of the file.

        It exists once a token was made, even after the last one is revoked: revoking must not open
        access.
        """
        self._seen: tuple[int, ...] | None = None
        self._held: tuple[HttpToken, ...] = ()

    def all(self) -> tuple[HttpToken, ...]:
        """Return all tokens, including expired ones, in the order of their making.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._held, self._seen = (
                    msgspec.json.decode(self.path.read_bytes(), type=tuple[HttpToken, ...]),
                    seen,
                )
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError(file_error(f"tokens {self.path}", error)) from None
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"tokens {self.path}: damaged; `shoal token` did not write this: {error}"
            ) from None
        return self._held

    def verify(self, token: str) -> Caller | None:
        """Return the caller with this token, or None if it is not valid.

        The duration does not depend on the number of correct characters.

        Raises:
            ConfigError: the file cannot be read.
        """
        token_hash, match = _hash(token), None
        for entry in self.all():
            if hmac.compare_digest(entry.hash, token_hash):
                match = entry
        return (
            Caller(match.name, match.role)
            if match is not None and not match.is_over(time.time())
            else None
        )

    def new(self, name: str, role: Role, expires_in_s: float | None = None) -> str:
        """Make a token and return it; only its hash is stored.

        Raises:
            ConfigError: `name` is not a valid name or is taken, `expires_in_s` is out of range, or
            the file cannot be read or written.
        """
        check_name(name, "token's name")
        if expires_in_s is not None and not 0 < expires_in_s <= MOST_S:
            raise ConfigError(
                f"expires must be above 0 s and at most ten years, got {expires_in_s:g} s"
            )
        with self._changing() as entries:
            now_s, token = time.time(), "shoal-" + secrets.token_urlsafe(SECRET_BYTES)
            if any(entry.name == name and not entry.is_over(now_s) for entry in entries):
                raise ConfigError(
                    f"Token {name!r} exists already. Revoke it, or choose another name."
                )
            until_s = None if expires_in_s is None else now_s + expires_in_s
            entries[:] = [
                *(entry for entry in entries if entry.name != name),
                HttpToken(name, role, _hash(token), now_s, until_s),
            ]
        return token

    def revoke(self, name: str) -> None:
        """Revoke a token.

        Raises:
            ConfigError: there is no token of this name, or the file cannot be read or written.
        """
        with self._changing() as entries:
            if name not in {entry.name for entry in entries}:
                raise ConfigError(
                    f"No token {name!r}. Known tokens: "
                    f"{', '.join(t.name for t in entries) or 'none'}."
                )
            entries[:] = [entry for entry in entries if entry.name != name]

    @contextmanager
    def _changing(self) -> Iterator[list[HttpToken]]:
        """Lock the tokens, yield them, and write them at the end of the context unless it fails.

        Raises:
            ConfigError: they cannot be read or written.
        """
        try:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(
                f"folder {self._folder}: {error.strerror}; `shoal serve --folder {self._folder}` "
                "makes it"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield (entries := [*self.all()])
            write_atomically(
                self.path, msgspec.json.format(msgspec.json.encode(entries)) + b"\n", 0o600
            )
        except OSError as error:
            raise ConfigError(file_error(f"tokens {self.path}", error)) from None
        finally:
            os.close(descriptor)


def http_access(folder: Path, host: str, owner: str) -> Access:
    """Return the rules of access to the service of this folder.

    Every request needs a token once there is one, or if other machines can reach `host`. `owner`:
    the token of the folder's owner.
    """
    tokens, open_to_others = TokenFile(folder), not is_loopback(host)
    if open_to_others and not tokens.path.exists():
        log.warning(
            "Other machines reach HTTP, but there is no token, so it answers only /health; "
            "`shoal token new %s` makes one: host=%s",
            folder,
            host,
        )

    def verify(token: str) -> Caller | None:
        if hmac.compare_digest(_hash(owner), _hash(token)):
            return Caller(OWNER, "operator")
        return tokens.verify(token)

    return Access(
        verify,
        lambda: open_to_others or tokens.path.exists(),
        lambda by, what, outcome, why: note(folder, by, what, outcome, text=why),
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
