"""Models as users write them, exported for both runtimes: twenty steps on a device are those of eager torch."""

import numpy as np
import pytest
import torch

from algorithms.models.adopt import adopt
from algorithms.models.classifier import Scale
from algorithms.objectives.fedavg import FedAvg
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.parity import check_parity
from tests.conftest import some_graphs
from tests.usual_models import IMAGES, WINDOWS
from wire import names
from wire.bundle import Window, unpack

pytest.importorskip("executorch", reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this")

MAKERS, CLASSES = WINDOWS | IMAGES, ("a", "b", "c", "d")
QUICK = ("vit", "lora", "frozen body")
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MAKERS]


@pytest.mark.parametrize("name", EVERY)
def test_steps_on_a_device_are_those_of_eager_torch(name: str) -> None:
    shape = (3, 24) if name in WINDOWS else (1, 28, 28)
    window = Window(tuple(f"c{i}" for i in range(shape[0])), shape[-1], 1, height=shape[1] if len(shape) == 3 else 0)
    torch.manual_seed(0)
    made = adopt(name, MAKERS[name](shape, len(CLASSES)), shape, len(CLASSES), Scale(torch.ones(shape[0]), len(shape) - 1))
    objective = some_graphs(FedAvg(made), "step", "evaluate", "predict")
    graphs = capture_graphs(objective, shape, RUNTIMES)
    bundle = unpack(make_bundle(graphs, name="usual", bundle_version=1, objective=objective, classes=CLASSES, window=window))
    drawing = np.random.default_rng(0)
    x, y = drawing.standard_normal((64, *shape)).astype(np.float32), drawing.integers(0, len(CLASSES), 64)
    parity = check_parity(bundle, objective, x, y, steps=20)
    assert parity.step_error < 1e-5
    frozen = [spec for spec in bundle.manifest.of_role(names.SLOT) if spec.name.startswith("frozen.")]
    assert bool(frozen) == (name in ("lora", "frozen body"))
    assert all(bundle.initial[spec.key].any() for spec in frozen if spec.name.endswith("weight"))
