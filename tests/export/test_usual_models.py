"""Models as users write them, exported for both runtimes: twenty steps on a device are those of eager torch."""

import pytest

from benchmarks.models import tried
from benchmarks.usual_models import IMAGES, WINDOWS

pytest.importorskip("executorch", reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this")

QUICK = ("lora",)
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in WINDOWS | IMAGES]


@pytest.mark.parametrize("name", EVERY)
def test_steps_on_a_device_are_those_of_eager_torch(name: str) -> None:
    found = tried(name)
    assert "refused" not in found
    assert found["step_error"] < 1e-5
    assert bool(found["frozen"]) == (name in ("lora", "frozen body"))
