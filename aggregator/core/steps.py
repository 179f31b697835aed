"""Steps of a rollout, and the gate between them, as settings."""

from typing import Annotated

import msgspec

from host.settings import YEAR_S, about


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of the next step of a rollout."""

    quorum: Annotated[
        float,
        about("Minimum share of a step's online devices that confirm it.", ge=0.01, le=1),
    ] = 0.8
    max_drop: Annotated[
        float,
        about(
            "Maximum fall of accuracy (median over devices); a release that lowers it by more is "
            "rolled back.",
            ge=0,
            le=1,
        ),
    ] = 0.02
    max_failures: Annotated[
        float,
        about(
            "Maximum share of a step's devices on which the release fails before it is rolled "
            "back.",
            ge=0,
            le=1,
        ),
    ] = 0.1
    max_slower: Annotated[
        float,
        about(
            "Maximum time of a prediction, in multiples of that with the model before: the median "
            "over devices.",
            ge=1,
            le=1e6,
        ),
    ] = 3.0
    patience_s: Annotated[
        float,
        about(
            "Seconds that a step waits for a clear answer; then the answers so far count.",
            unit="s",
            ge=0,
            le=YEAR_S,
        ),
    ] = 3600.0


class Step(msgspec.Struct, frozen=True):
    """Devices that a step of a rollout adds to those of the steps before it.

    These are a share of all devices, and the devices that have one of the tags.
    """

    share: float = 0.0
    tags: tuple[str, ...] = ()
