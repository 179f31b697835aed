"""A simulated device's private noise."""

import zlib

import numpy as np

from wire.messages import Plan


def repeatable_secret(plan: Plan) -> np.random.Generator:
    """A device's private noise, the same in every simulation of the same seed: no secret at all,
    and good for nothing else."""
    return np.random.default_rng([plan.seed, zlib.crc32(plan.device_id.encode()), 0x5EC])
