"""Training steps on the JVM and by torch."""

import subprocess
from pathlib import Path

import numpy as np
import torch

from algorithms.objectives.supervised import Supervised
from edge_client.core.ports import Windows
from export.parity import _draw, _eager_step
from tests.android.bridge import host_command
from wire.arrays import names
from wire.arrays.tensors import Tensors, encode_tensors
from wire.bundle import Bundle

STEPS = 20
BATCH = 32
VERSION = "1.5.1"


def draw_batches(objective: Supervised, windows: Windows) -> list[Tensors]:
    """Return the content of the batches of twenty steps."""
    rng, batches = np.random.default_rng(3), []
    for step in range(STEPS):
        chosen = rng.integers(0, windows.num_train, BATCH if step % 5 else BATCH // 3)
        batch = {"x": windows.train_x[chosen], "y": windows.train_y[chosen]} | _draw(
            objective, len(chosen), rng
        )
        batches.append(
            {f"batch/{name}": np.ascontiguousarray(value) for name, value in batch.items()}
        )
    return batches


def eager(
    objective: Supervised, bundle: Bundle, batches: list[Tensors], dtype: torch.dtype
) -> Tensors:
    """The tensors after the steps in eager torch."""
    step, held = _eager_step(objective, "step", dtype), dict(bundle.initial)
    for batch in batches:
        outputs = step(held, {name.removeprefix("batch/"): value for name, value in batch.items()})
        held = held | names.part(outputs, names.NEXT)
    return held


def on_the_jvm(
    path: Path, bundle: Bundle, batches: list[Tensors], version: str = VERSION
) -> subprocess.CompletedProcess[str]:
    given = {
        f"in/{i}/{name}": value for i, batch in enumerate(batches) for name, value in batch.items()
    }
    given |= {
        f"hyper/{name}": np.array(value, np.float32)
        for name, value in bundle.manifest.hyper.items()
    }
    inputs, outputs = path.with_name("inputs.safetensors"), path.with_name("outputs.safetensors")
    inputs.write_bytes(encode_tensors(given))
    arguments = [str(path), "step", version, str(inputs), str(outputs)]
    return subprocess.run([*host_command("StepsKt"), *arguments], capture_output=True, text=True)
