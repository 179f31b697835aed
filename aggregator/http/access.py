"""Who may ask what of a service over HTTP, and the port by which that is known."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

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
`aggregator.http.tokens` is the adapter for Shoal's own tokens; what verifies those of an
identity provider would be another."""


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
