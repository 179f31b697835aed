"""`shoal algorithms`: every name that may stand in an algorithm."""

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("algorithms")
def algorithms(
    as_json: opt.Json = False,
) -> None:
    """List the choices an algorithm is made of: objectives, groupings, means, privacy, tasks. Join
    some of them with +."""
