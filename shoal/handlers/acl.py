"""`shoal acl`: the broker's rules."""

from wire.topics import mosquitto_acl


def acl(fleet: str) -> None:
    """Carry out `shoal acl`."""
    print(mosquitto_acl(fleet), end="")
