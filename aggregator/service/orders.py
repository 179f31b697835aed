"""What an operator can order of a running service's campaigns; `aggregator.service.steering`
carries it out."""

from typing import Any

import msgspec


class Start(msgspec.Struct, frozen=True, tag="campaign-start"):
    """Start the campaign that was laid down under this name
    (`aggregator.storage.charter.propose`)."""

    name: str


class Hold(msgspec.Struct, frozen=True, tag="campaign-pause"):
    """Pause a campaign until `Resume`."""

    name: str


class Resume(msgspec.Struct, frozen=True, tag="campaign-resume"):
    """Go on after a pause, whatever its cause was; with every campaign where none is named."""

    name: str = ""


class Abort(msgspec.Struct, frozen=True, tag="campaign-abort"):
    """End a campaign where it stands."""

    name: str


class Retune(msgspec.Struct, frozen=True, tag="campaign-set"):
    """Give a campaign these values of its settings, by field of `RunSettings`, from the next round
    on."""

    name: str
    changes: dict[str, Any]

    @classmethod
    def of(cls, name: str, *, lr: float | None = None, **given: Any) -> "Retune":
        """The order for the values that are not None. No round is aggregated with fewer updates
        than `min_devices`."""
        changes = {field: value for field, value in given.items() if value is not None}
        if "min_devices" in changes:
            changes["min_updates"] = changes["min_devices"]
        return cls(name, changes if lr is None else changes | {"hyper": {"lr": lr}})


class RollBack(msgspec.Struct, frozen=True, tag="campaign-rollback"):
    """Return to the models that a round made."""

    name: str
    to: int
