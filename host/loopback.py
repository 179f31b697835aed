"""Names and addresses of this machine itself."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine alone.

    That is ``localhost``, or an address that no other machine can reach.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def asked_host(header: str) -> str:
    """Return the host in a request's header ``Host``, without the port; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # unbalanced brackets
        return ""
