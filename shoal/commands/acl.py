"""The command `shoal acl`, which prints the broker's rules."""

from typing import Annotated

import typer

from shoal.command import command
from wire.topics import mosquitto_acl


@command(in_json=False)
def acl(fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default") -> None:
    """Print Mosquitto's access list for a fleet.

    The broker needs `use_identity_as_username` (deploy/mosquitto/mosquitto.conf).
    """
    print(mosquitto_acl(fleet), end="")
