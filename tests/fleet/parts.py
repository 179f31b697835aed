"""Parts of a fleet: what is stored of it, and what has no timers."""

from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.fleet.records import Fleet


def untimed(fleet: Fleet) -> Fleet:
    """A fleet without timers."""
    devices = fleet.devices.mutate()
    for device_id, device in fleet.devices.items():
        devices[device_id] = replace(device, wake_s=0.0)
    return replace(fleet, wake_s=0.0, devices=devices.finish())


def underived(fleet: Fleet) -> Fleet:
    """A fleet with what is stored of it."""
    devices = fleet.devices.mutate()
    for device_id, device in fleet.devices.items():
        devices[device_id] = device.stored()
    derived = {
        "wake_s": 0.0,
        "sweep": 0,
        "order": DevicePool(),
        "pools": {},
        "counts": Map(),
    }
    return replace(fleet, devices=devices.finish(), **derived)
