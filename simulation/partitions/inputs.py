"""Partitions of a pool by its inputs: devices have equal shares of classes but different inputs.

`rotation`: AutoCFL, section 5.1. `noise`: FedDisk, section VII-A. `environments`: the
environment-difference scenario of B. Liu et al., DistFL, IMWUT 2021, section 5.1. The paper uses
the four domains of Office-Home; here four backgrounds take their place.
"""

import numpy as np

from simulation.datasets.pool import Pool
from simulation.partitions.assignment import Allocation, assign_by_shares, blocks
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import ConfigError

BACKGROUNDS = ("plain", "rows", "columns", "glow")
DISTURBANCES = ("plain", "vibration", "offset", "noise")


def _alike(pool: Pool, devices: int, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
    """Assign every class in equal shares."""
    return assign_by_shares(pool, np.full((devices, len(pool.classes)), 1 / devices), rng)


def rotation(pool: Pool, rng: np.random.Generator, *, devices: int, groups: int) -> Allocation:
    """Assign devices to groups whose inputs are turned by 0, 90, 180 or 270 degrees.

    Two groups are turned by 0 and 180 degrees. Images turn in their plane, and three-axis sensors
    about their z axis, as if devices were mounted differently.

    Raises:
        ConfigError: images are not square, or no channels are the x, y and z of one sensor.
    """
    quarters = (0, 2) if groups == 2 else tuple(range(groups))
    member = blocks(devices, groups)
    window = pool.window
    if window.height and window.height != window.length and any(q % 2 for q in quarters):
        raise ConfigError(
            f"rotation: images of {window.height} x {window.length} cannot be turned by 90 "
            "degrees. Use groups=2."
        )
    sensors = [] if window.height else three_axis_sensors(window)
    if not window.height and not sensors:
        raise ConfigError(
            "rotation needs three channels with names like ax, ay, az, got "
            f"{', '.join(window.channels)}"
        )

    def change(x: Array, device: int, _rng: np.random.Generator) -> Array:
        return turn(x, quarters[member[device]], sensors)

    return Allocation(
        *_alike(pool, devices, rng), [str(90 * quarters[group]) for group in member], change
    )


def turn(x: Array, quarters: int, sensors: list[int]) -> Array:
    """Turn images (n, channels, height, width) or windows (n, channels, time) by quarter turns.

    In windows, each three-axis sensor turns whose first channel is in `sensors`.
    """
    if x.ndim == 4:
        return np.ascontiguousarray(np.rot90(x, quarters, axes=(2, 3)))
    turned = x.copy()
    for first in sensors:
        for _ in range(quarters):
            turned[:, first], turned[:, first + 1] = -turned[:, first + 1], turned[:, first].copy()
    return turned


def three_axis_sensors(window: Window) -> list[int]:
    """Return the first channel of each three-axis sensor.

    Its three channels are consecutive, and their names differ only in the last letter: x, y, z.
    """
    names = [name.lower() for name in window.channels]
    return [
        i
        for i in range(len(names) - 2)
        if [n[-1:] for n in names[i : i + 3]] == ["x", "y", "z"]
        and len({n[:-1] for n in names[i : i + 3]}) == 1
    ]


def noise(pool: Pool, rng: np.random.Generator, *, devices: int, x: float) -> Allocation:
    """Add Gaussian noise to both parts, with a variance that grows from device to device.

    The variance is k * x / devices for device k of 0 .. devices - 1. Images are clipped to [0, 1]
    afterwards. In windows, the unit of noise is each channel's root mean square.
    """
    size = _unit(pool)

    def change(examples: Array, device: int, rng: np.random.Generator) -> Array:
        drawn = rng.standard_normal(examples.shape, dtype=np.float32)
        noisy = examples + drawn * np.float32(np.sqrt(device * x / devices)) * size
        return np.clip(noisy, 0, 1, out=noisy) if pool.window.height else noisy

    return Allocation(*_alike(pool, devices, rng), change=change)


def environments(pool: Pool, rng: np.random.Generator, *, devices: int, types: int) -> Allocation:
    """Assign devices to groups with different surroundings of the same objects.

    Images have a plain background, one with striped rows or columns, or a glowing one. Windows have
    no disturbance, a vibration, an offset, or noise; each is half of a channel's root mean square.
    """
    names = BACKGROUNDS if pool.window.height else DISTURBANCES
    member = blocks(devices, types)
    size = _unit(pool)

    def change(x: Array, device: int, rng: np.random.Generator) -> Array:
        name = names[member[device]]
        return (
            with_background(x, name, rng)
            if pool.window.height
            else with_disturbance(x, name, size, rng)
        )

    return Allocation(*_alike(pool, devices, rng), [names[group] for group in member], change)


def with_background(x: Array, name: str, rng: np.random.Generator) -> Array:
    """Return images (n, channels, height, width) in [0, 1] with a background in [0, 0.6].

    The background shines through where an image is dark.
    """
    height, width = x.shape[2:]
    rows, columns = np.arange(height)[:, None], np.arange(width)[None, :]
    phase = rng.integers(0, 4, (len(x), 1, 1))
    behind: Array = {
        "plain": np.zeros((1, height, width)),
        "rows": 0.6 * ((rows + phase) % 4 < 2) * np.ones((1, width)),
        "columns": 0.6 * ((columns + phase) % 4 < 2) * np.ones((height, 1)),
        "glow": 0.6
        * np.exp(-(((rows - height / 2) / height) ** 2 + ((columns - width / 2) / width) ** 2) * 8)[
            None
        ],
    }[name]
    shone: Array = 1 - (1 - x) * (1 - behind[:, None])
    return shone.astype(np.float32)


def with_disturbance(x: Array, name: str, size: Array, rng: np.random.Generator) -> Array:
    """Return windows (n, channels, time) with a disturbance, in units of `size` (channels, 1)."""
    if name == "plain":
        return x
    if name == "vibration":
        phase = rng.uniform(0, 2 * np.pi, (len(x), 1, 1))
        disturbance = np.sqrt(2) * np.sin(2 * np.pi / 5 * np.arange(x.shape[2]) + phase)
    elif name == "offset":
        disturbance = np.ones((1, 1, 1))
    else:
        disturbance = rng.standard_normal(x.shape)
    disturbed: Array = x + 0.5 * size * disturbance
    return disturbed.astype(np.float32)


def _unit(pool: Pool) -> Array:
    """Return the unit of noise: 1 for images, the root mean square of each channel for windows.

    The latter is (channels, 1) float32.
    """
    if pool.window.height:
        return np.ones((1, 1, 1), np.float32)
    size: Array = np.sqrt(np.square(pool.train_x, dtype=np.float64).mean((0, 2)))
    return size[:, None].astype(np.float32)
