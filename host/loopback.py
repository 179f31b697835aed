"""Which names and addresses are this machine's own."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone: ``localhost``, or an address that no other machine
    reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def asked_host(header: str) -> str:
    """The host in a request's header ``Host``, without the port; empty where it has none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # brackets that do not match
        return ""
