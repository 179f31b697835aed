"""Who may ask what of a service over HTTP. Pure, but for what `Verify` does."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
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
"""The port by which callers are known: who holds this bearer token; None if it is of no use. It is called for each request, in a thread
that may wait, and raises `ShoalError` where it cannot tell. `aggregator.adapters.token_file` is the adapter for Shoal's own tokens; one that
verifies an identity provider's tokens would be another."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a service that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
