"""`shoal algorithms`: every name that may stand in an algorithm."""

from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("algorithms")
def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of name, choice, citation, options.")] = False,
) -> None:
    """List the choices an algorithm is made of: objectives, groupings, means, privacy, tasks. Join some of them with +."""
