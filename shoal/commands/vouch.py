"""`shoal vouch`: the root key vouches for a service's key."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("vouch")
def vouch(
    fleet: Annotated[str, typer.Option(help="Name of the fleet that the service may speak for.")],
    key: Annotated[Path, typer.Option(help="The root key: signing.key of `shoal export`.")],
    service: Annotated[
        Path | None, typer.Option(help="The service's folder; service.voucher is written into it.")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            help="Instead: a copy of the service's service.pub, where its folder is elsewhere."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the voucher; service.voucher beside service.pub when not given."
        ),
    ] = None,
    days: Annotated[
        float,
        typer.Option(help="For how long devices believe the service; a hundred years at most."),
    ] = 365.0,
) -> None:
    """Sign a service's key with the root key, so that devices believe the service. It reads the
    voucher when it starts."""
