"""An operator's orders on devices, for the desk of a running service."""

import msgspec


class TagDevices(msgspec.Struct, frozen=True, tag="tag-devices"):
    """Give devices tags beside others: those of these ids, or those that a rule means."""

    device_ids: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = ""


class UntagDevices(msgspec.Struct, frozen=True, tag="untag-devices"):
    """Take tags away from devices: from those of these ids, or from those that a rule means."""

    device_ids: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = ""


class BanDevice(msgspec.Struct, frozen=True, tag="ban-device"):
    """Nothing of this device is to be taken, and it is to be asked for nothing."""

    device_id: str
    reason: str


class UnbanDevice(msgspec.Struct, frozen=True, tag="unban-device"):
    """The device is to take part again."""

    device_id: str


class ForgetDevice(msgspec.Struct, frozen=True, tag="forget-device"):
    """Nothing of this device is to remain."""

    device_id: str
