"""Who may ask what of a service over HTTP, and its bearer tokens: their hashes, in a file of the
service's folder that its owner alone may read. `shoal token` writes it while the service runs; the
service looks at it for each request, so that what was revoked is refused at once."""

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
from host.files import write_atomically
from host.loopback import is_loopback
from wire.errors import ConfigError
from wire.topics import check_name

log = logging.getLogger("shoal.aggregator")

FILE = "http-tokens.json"
SECRET_BYTES = 32
MOST_S = 10 * 366 * 86_400.0
OWNER = "the folder's owner"
"""Name in the audit log of whoever can read the folder's own token (`aggregator.http.local`)."""

Role = Literal["viewer", "operator"]
"""A viewer may read everything. An operator may give orders too."""


@dataclass(frozen=True)
class Caller:
    """Somebody who has shown a valid token."""

    name: str
    """By which the audit log knows them."""
    role: Role


Verify = Callable[[str], Caller | None]
"""The port by which callers are known: who holds this bearer token; None if it is of no use. It is
called for each request, in a thread that may wait, and raises `ShoalError` where it cannot tell.
`TokenFile` is the adapter for Shoal's own tokens; what verifies those of an identity provider would
be another."""


@dataclass(frozen=True)
class Access:
    """By what the HTTP API lets somebody in."""

    verify: Verify
    required: Callable[[], bool]
    """Whether reading needs a token. Orders always do."""
    note: Callable[[str, str, str, str], None]
    """Adds a line to the audit log: who, what, what came of it, why."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, from a clock that cannot be set."""
    burst: float = 100.0
    """Requests of one token at once; and `per_s` a second after that."""
    per_s: float = 20.0
    failed_burst: float = 10.0
    """Requests without a valid token, of one address, that have an answer of their own; and
    `failed_per_s` a second after that."""
    failed_per_s: float = 0.2
    refused: Counter[str] = field(default_factory=Counter)
    """How often a request was refused, by reason."""


class HttpToken(msgspec.Struct, frozen=True):
    """What is known of a token: not the token."""

    name: str
    role: Role
    hash: str
    """SHA-256 of the token, which is of 256 random bits and so needs no slow hash."""
    made_at_s: float
    expires_at_s: float | None = None
    """None: never."""

    def is_over(self, now_s: float) -> bool:
        """Whether its time is over."""
        return self.expires_at_s is not None and self.expires_at_s <= now_s


class TokenFile:
    """The tokens of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / FILE
        """It is there once a token was made, also when the last one is revoked: taking a token
        away opens nothing."""
        self._seen: tuple[int, ...] | None = None
        self._held: tuple[HttpToken, ...] = ()

    def all(self) -> tuple[HttpToken, ...]:
        """Every token, also those whose time is over, in the order in which they were made.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            found = self.path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._held, self._seen = (
                    msgspec.json.decode(self.path.read_bytes(), type=tuple[HttpToken, ...]),
                    seen,
                )
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError(f"tokens {self.path}: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"tokens {self.path}: not what `shoal token` wrote: {error}"
            ) from None
        return self._held

    def verify(self, token: str) -> Caller | None:
        """Return who holds this token; None if it is of no use. The time that it takes does not
        depend on how much of a token is right.

        Raises:
            ConfigError: the file cannot be read.
        """
        shown, found = _hash(token), None
        for held in self.all():
            if hmac.compare_digest(held.hash, shown):
                found = held
        return (
            Caller(found.name, found.role)
            if found is not None and not found.is_over(time.time())
            else None
        )

    def new(self, name: str, role: Role, expires_in_s: float | None = None) -> str:
        """Make a token, which nobody can read again.

        Raises:
            ConfigError: not a name, the name is taken, not a time, or the file cannot be read or
            written.
        """
        check_name(name, "token's name")
        if expires_in_s is not None and not 0 < expires_in_s <= MOST_S:
            raise ConfigError(
                f"a token for {expires_in_s:g} s: expected more than 0, and ten years at most"
            )
        with self._changing() as held:
            now_s, token = time.time(), "shoal-" + secrets.token_urlsafe(SECRET_BYTES)
            if any(known.name == name and not known.is_over(now_s) for known in held):
                raise ConfigError(
                    f"token {name!r}: there is one of this name; revoke it, or give another name"
                )
            until_s = None if expires_in_s is None else now_s + expires_in_s
            held[:] = [
                *(known for known in held if known.name != name),
                HttpToken(name, role, _hash(token), now_s, until_s),
            ]
        return token

    def revoke(self, name: str) -> None:
        """Let a token count no longer.

        Raises:
            ConfigError: there is none of this name, or the file cannot be read or written.
        """
        with self._changing() as held:
            if name not in {known.name for known in held}:
                raise ConfigError(
                    f"token {name!r}: there is none of this name; those that are: "
                    f"{', '.join(t.name for t in held) or 'none'}"
                )
            held[:] = [known for known in held if known.name != name]

    @contextmanager
    def _changing(self) -> Iterator[list[HttpToken]]:
        """Give the tokens, which no other command changes meanwhile, and write them at the end of
        the context unless it fails.

        Raises:
            ConfigError: they cannot be read or written.
        """
        try:
            opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(
                f"folder {self._folder}: {error.strerror}; `shoal serve --folder` makes it"
            ) from None
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield (held := [*self.all()])
            write_atomically(
                self.path, msgspec.json.format(msgspec.json.encode(held)) + b"\n", 0o600
            )
        except OSError as error:
            raise ConfigError(f"tokens {self.path}: {error.strerror}") from None
        finally:
            os.close(opened)


def http_access(folder: Path, host: str, owner: str) -> Access:
    """Return who may ask what of the service of this folder, which listens on this host: once there
    is a token, or where other machines reach it, everything needs one. `owner`: the token of the
    folder's owner."""
    tokens, open_to_others = TokenFile(folder), not is_loopback(host)
    if open_to_others and not tokens.path.exists():
        log.warning(
            "HTTP listens on %s and there is no token: it answers /health alone; `shoal token new "
            "%s` makes one",
            host,
            folder,
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
