"""Declarations of the choices, compared with the behaviour of their methods."""

from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import cross_entropy

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import PlainSgd, TorchTensors
from algorithms.groupings.single import SingleGroup
from algorithms.means.weighted import UniformMean, WeightedMean
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.supervised import Pass, Supervised
from algorithms.registry import CHOICES
from simulation.contract import declarations
from simulation.contract.declarations import ANSWERS, TRAINING
from simulation.contract.fleet import tiny_model
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.objectives import OBJECTIVES


@pytest.mark.representatives("fedavg", "scaffold", "fedgen", "ditto")
@pytest.mark.parametrize("name", CHOICES["objective"])
class TestObjectives:
    def test_a_step_is_declared_plain_where_nothing_of_it_was_replaced(self, name: str) -> None:
        declarations.plain_steps(CHOICES["objective"][name])

    def test_answers_are_declared_the_models_where_nothing_of_them_was_replaced(
        self, name: str
    ) -> None:
        declarations.own_answers(CHOICES["objective"][name])

    def test_a_server_absorbs_where_it_says_so(self, name: str) -> None:
        declarations.absorbing(CHOICES["objective"][name])


def derived(base: type[Supervised], own: dict[str, Any], *mixins: type) -> type[Supervised]:
    """A class that inherits from the mixins and then the base, with attributes of its own."""
    return type("Derived", (*mixins, base), own)


class TestInheritance:
    """A declaration holds for those who inherit the methods that it is about, and for nobody
    else."""

    @pytest.mark.parametrize("method", [*TRAINING, "graphs"])
    def test_a_class_that_overrides_a_method_of_training_inherits_no_plain_sgd(
        self, method: str
    ) -> None:
        made = derived(FedAvg, {method: lambda *_: None})
        assert made.sgd_graphs == {}
        assert derived(made, {}).sgd_graphs == {}
        assert derived(FedAvg, {}, type("Mixin", (), {method: None})).sgd_graphs == {}

    @pytest.mark.parametrize("method", ANSWERS)
    def test_a_class_that_overrides_an_answer_does_not_answer_as_the_model(
        self, method: str
    ) -> None:
        assert not derived(FedAvg, {method: lambda *_: None}).model_answers

    def test_a_class_that_overrides_nothing_of_them_or_declares_anew_keeps_its_declaration(
        self,
    ) -> None:
        assert derived(FedAvg, {"role": lambda *_: "private"}).sgd_graphs == FedAvg.sgd_graphs
        assert derived(FedAvg, {"step": None, "sgd_graphs": {"tune": PlainSgd()}}).sgd_graphs == {
            "tune": PlainSgd()
        }
        assert derived(FedAvg, {"predict": None, "model_answers": True}).model_answers

    def test_an_objective_with_a_loss_of_its_own_is_simulated_with_it(
        self, fleet: FleetData, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Smooth(FedAvg):
            def loss(
                self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
            ) -> tuple[Tensor, Pass]:
                made = self.forward(tensors, batch, training=True)
                return cross_entropy(made.logits, batch["y"], label_smoothing=0.5), made

        settings = SimulationSettings(read_algorithm("fedavg"), rounds=1)
        plain = simulate(fleet, settings)
        monkeypatch.setitem(CHOICES["objective"], "fedavg", Smooth)
        other = simulate(fleet, settings)
        by_hand = simulate(fleet, settings, engine=EngineOptions(backend="eager"))
        assert plain.summary.backend == "native"
        assert other.summary.backend != "native"
        assert other.summary.accuracy_by_round == by_hand.summary.accuracy_by_round
        assert other.campaign.models != plain.campaign.models


@pytest.mark.representatives("fedavg-*")
@pytest.mark.parametrize("name", CHOICES["personalisation"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_a_device_keeps_leaves_its_objectives_declarations_alone(
    objective: str, name: str
) -> None:
    spec = read_algorithm(f"{objective}+{name}")
    plain = make_objective(read_algorithm(objective), tiny_model(str(spec)))
    called = plain.name
    declarations.same_declarations(CHOICES["personalisation"][name](), plain)
    assert make_objective(spec, tiny_model(str(spec))).name == (
        called if name == "served" else f"{called}+{name}"
    )


def test_only_the_single_group_reads_no_models() -> None:
    assert [made for made in CHOICES["grouping"].values() if not made().reads_models] == [
        SingleGroup
    ]


@pytest.mark.parametrize("name", sorted(CHOICES["privacy"]))
def test_a_mechanism_says_whether_the_server_adds_noise(name: str) -> None:
    declarations.server_noise(CHOICES["privacy"][name])


@pytest.mark.parametrize("name", sorted(CHOICES["mean"]))
def test_a_mean_is_what_it_declares(name: str) -> None:
    declarations.mean_of_models(CHOICES["mean"][name]())


def test_only_the_averages_leave_nobody_out() -> None:
    assert {made for made in CHOICES["mean"].values() if made.averages} == {
        WeightedMean,
        UniformMean,
    }
    assert [made for made in CHOICES["mean"].values() if made.by_examples] == [WeightedMean]
