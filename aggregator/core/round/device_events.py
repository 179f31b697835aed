"""Events of a run by what becomes of a device, see `aggregator.core.round.membership`."""

import msgspec

from wire.messages import Digest


class EligibilityChanged(msgspec.Struct, frozen=True, tag="eligibility-changed"):
    """Of these devices is known anew whether they are asked for anything. None of them is barred
    any longer."""

    at_s: float
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


class DeviceBarred(msgspec.Struct, frozen=True, tag="device-barred"):
    """A device was banned: what it sent for the open round does not count, and it is asked for
    nothing."""

    at_s: float
    device_id: str


class DeviceForgotten(msgspec.Struct, frozen=True, tag="device-forgotten"):
    """Nothing of a device is to remain. `memories`: by the digest of each memory of the algorithm
    that the run names, the digest of the same without the device. `own`: the models that were made
    of its updates alone."""

    at_s: float
    device_id: str
    memories: dict[Digest, Digest]
    own: tuple[Digest, ...] = ()


class Says(msgspec.Struct, frozen=True):
    """What a device holds, and what its owner lets it say, as it told when it checked in with any
    run of the fleet."""

    held: tuple[str, ...] | None
    """As `CheckIn.kept`; None also where the device has chosen since."""
    withholds: bool
    """Whether its owner does not let it say what it keeps, and why (`Policy.withholds`)."""
    min_windows: int
    """As in `Policy`."""


class KeptChanged(msgspec.Struct, frozen=True, tag="kept-changed"):
    """By device, what it says, where that takes back something that this run has been told."""

    at_s: float
    devices: dict[str, Says]
