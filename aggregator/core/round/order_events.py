"""Events of a run by the operator's word; `aggregator.core.round.orders` says what follows. Pure."""

import msgspec

from aggregator.core.settings import RunSettings
from wire.messages import Verb


class RolledBack(msgspec.Struct, frozen=True, tag="rolled-back"):
    """The operator returns to the models that the round `to` made, if they are remembered.
    `programs`: what devices do with them, by the settings that the run has now; None: as then."""

    at_s: float
    to: int
    programs: dict[str, tuple[Verb, ...]] | None = None


class Retuned(msgspec.Struct, frozen=True, tag="retuned"):
    """The operator has given the run other settings. `programs`: what devices do with them, if a
    round is opened because of it."""

    at_s: float
    settings: RunSettings
    programs: dict[str, tuple[Verb, ...]]


class Aborted(msgspec.Struct, frozen=True, tag="aborted"):
    """The operator ends the campaign where it stands."""

    at_s: float
