"""The methods that Shoal does not offer learn as they are measured."""

from statistics import fmean

import pytest
import torch

from benchmarks import rivals
from simulation.datasets.catalog import load_data


@pytest.mark.full
@pytest.mark.parametrize("method", list(rivals.METHODS))
def test_each_learns(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_data("watch")
    monkeypatch.setattr(rivals, "load_data", lambda _: whole.only(sorted(whole.devices)[:2]))
    before, after = (
        fmean(rivals.run(method, "watch", "time", "all", 0, rounds)) for rounds in (0, 3)
    )
    assert after > before + 0.2


def test_weights_on_a_simplex_are_the_nearest_ones() -> None:
    assert torch.equal(rivals.onto_simplex(torch.tensor([0.25, 0.75])), torch.tensor([0.25, 0.75]))
    assert torch.allclose(
        rivals.onto_simplex(torch.tensor([2.0, 1.5, -1.0])), torch.tensor([0.75, 0.25, 0.0])
    )


def test_fedpac_mixes_the_heads_of_devices_with_like_features() -> None:
    alike, other = torch.ones(2, 4), -torch.ones(2, 4)
    mixture = rivals.FedPac._mixture(0, [(0.1, alike), (0.1, alike), (0.1, other)])
    assert mixture == pytest.approx([0.5, 0.5, 0.0], abs=0.02)
    lonely = rivals.FedPac._mixture(2, [(0.1, alike), (0.1, alike), (0.1, other)])
    assert lonely == pytest.approx([0.0, 0.0, 1.0], abs=0.02)


def test_two_samples_of_one_distribution_are_nearer_than_those_of_two() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(32, 4), torch.randn(32, 4)
    assert rivals.discrepancy(a, a) == pytest.approx(0.0, abs=1e-6)
    assert rivals.discrepancy(a, b) < rivals.discrepancy(a, b + 3)
