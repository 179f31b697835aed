"""Personal models of a device, and its answers."""

from tests.edge_client.device import Device, other_model
from wire import messages as m
from wire.arrays.tensors import Array
from wire.codec import digest

OWN = m.Train(16, 4, hyper={"lr": 0.05}, report=False)
"""After this training the device keeps a model of its own."""


def keep(
    device: Device, number: int = 1, model: bytes | None = None, **changes: object
) -> m.Update:
    """The device keeps something of a model; the update of that plan."""
    payload = model or device.model
    device.offer(device.bundle.payload, payload)
    device.send_plan(number, **{"model": digest(payload), "verbs": (OWN, m.Evaluate()), **changes})
    device.turn()
    ((update, _),) = device.updates()
    return update


def train(device: Device, *numbers: int) -> None:
    """Further rounds of the run, each from another model."""
    for number in numbers:
        payload = other_model(device, 1 + number / 100)
        device.offer(payload)
        device.send_plan(number, model=digest(payload))
        device.turn()


def answer(device: Device) -> Array:
    return device.agent.predict(device.windows.test_x)
