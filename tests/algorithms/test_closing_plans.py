"""Plans after the last round, carried out on tiny devices: every objective, with any number of
labels, and what leaves the device."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggregator.fleet.desired import by_labels
from algorithms.composition import make_algorithm, make_objective, read_algorithm
from algorithms.optimizers.base import slot_of
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.memory import EVIDENCE, KEYS, LABELS, SHARE, UNITS
from algorithms.registry import CHOICES
from edge_client.core.kept import own_tensors
from edge_client.core.ports import Windows
from edge_client.work.executor import Executor
from simulation.contract.fleet import (
    CHANNELS,
    CLASSES,
    LENGTH,
    WORK,
    make_field,
    tiny_model,
    tiny_windows,
)
from simulation.contract.rounds import small
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.native import NativeGraphs
from tests.algorithms.closing_cases import KEPT_WAYS, close, labelled, played
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.errors import ConfigError
from wire.messages import Apply, Evaluate, Train


def keeping_of(objective: Any) -> Keeping:
    """Return the personalisation that wraps an objective."""
    keeping = objective.graphs()["memorise"].__self__
    assert isinstance(keeping, Keeping)
    return keeping


def with_personal(objective: str) -> str:
    """The objective's name with `personal`, on one group unless it asks for its own grouping."""
    return f"{small(objective)}+personal" + (
        "" if OBJECTIVES[objective].server.grouping else "+none"
    )


PREPARE = {"moon", "moon+dbe", "fedrod", "fedrod+mr", "pfedme", "fedpcl"}
"""Objectives whose devices make tensors by other verbs than their training."""


@pytest.mark.representatives("fedavg", "ditto")
@pytest.mark.parametrize("objective", list(OBJECTIVES))
class TestEveryObjective:
    """Each objective with `personal`: its closing plan, on devices with all labels, one label, and
    none."""

    def test_graphs_and_tensors_have_names_of_their_own(self, objective: str) -> None:
        spec = read_algorithm(with_personal(objective))
        made: Any = make_objective(spec, tiny_model(str(spec)))
        plain = make_objective(read_algorithm(f"{small(objective)}"), tiny_model(str(spec)))
        assert set(plain.graphs()) < set(made.graphs())
        tensors = made.initial()
        assert set(plain.initial()) < set(tensors)
        moving = keeping_of(made).moving(tensors)
        slots = [slot_of(key, "before") for key in moving]
        assert len(slots) == len(set(slots))
        assert {k for k in tensors if names.role_of(k) == "private"} <= set(
            keeping_of(made).moving(tensors)
        )
        assert names.of_role(tensors, names.MEMORY).keys() == {
            KEYS,
            UNITS,
            LABELS,
            EVIDENCE,
            SHARE,
        }

    def test_the_closing_plan_is_carried_out_with_any_labels_and_reports_scores_alone(
        self, objective: str
    ) -> None:
        field = played(with_personal(objective))
        every = tiny_windows(0)
        for count in (len(every.train_y), 1, 0):
            windows = labelled(every, count)
            result, model = close(field, windows, field.private_tensors["d0"] if count > 1 else {})
            assert set(result.tensors) == {
                f"response/choose.{name}"
                for name in ("choice", "loss", "error", "usable", "windows")
            }
            assert result.tensors["response/choose.choice"].sum() == 1
            assert all(
                np.isfinite(value).all()
                for value in [*result.private.values(), *result.tensors.values()]
            )
            assert result.evaluated.num_examples == len(every.test_y)
            executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
            answers = executor.predict(model, result.private, every.test_x)
            np.testing.assert_allclose(answers.sum(1), 1, atol=1e-4)
            assert (answers.argmax(1) == every.test_y).sum() == result.evaluated.num_correct
            if count < 2:
                assert result.num_steps == 0
                untrained = result.tensors["response/choose.choice"][
                    [0, 2]
                ]  # the first where verbs besides the training prepare tensors
                assert untrained.tolist() == [0, 1] or (
                    untrained.tolist() == [1, 0] and objective in PREPARE
                )


class TestWhatIsKept:
    def prefer_general(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from algorithms.personalisation import keeping

        def third(
            _losses: torch.Tensor,
            _judged: torch.Tensor,
            _errors: float,
            _usable: torch.Tensor,
            _at: int,
        ) -> torch.Tensor:
            return torch.tensor([0.0, 0.0, 1.0, 0.0])

        monkeypatch.setattr(keeping, "first_good", third)

    @pytest.mark.representatives("fedavg", "ditto")
    @pytest.mark.parametrize("objective", list(OBJECTIVES))
    def test_without_the_training_every_bit_is_as_it_was_before_it(
        self, objective: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Cut the same plan off before its training, with the private tensors of the device."""
        self.prefer_general(monkeypatch)
        field = played(with_personal(objective))
        windows, private = tiny_windows(0), field.private_tensors["d0"]
        verbs = field.algorithm.coordinator.closing(field.state.context, WORK)
        at = verbs.index(Apply("baseline", report=False))
        before, model = close(field, windows, private, verbs[: at + 1])
        after, _ = close(field, windows, private, verbs)
        assert after.num_steps > before.num_steps
        one, two = (own_tensors(field.bundle, model, result.private) for result in (before, after))
        made: Any = make_objective(
            read_algorithm(with_personal(objective)), tiny_model(with_personal(objective))
        )
        for key in keeping_of(made).moving(made.initial()):
            np.testing.assert_array_equal(one[key], two[key], err_msg=key)
        for key in (KEYS, UNITS):
            np.testing.assert_array_equal(one[key], two[key])

    def test_training_that_diverges_leaves_the_model_as_it_was(self) -> None:
        field = played("fedavg+personal+none")
        verbs = tuple(
            replace_train(verb, hyper={"lr": 1e30}) if isinstance(verb, Train) else verb
            for verb in field.algorithm.coordinator.closing(field.state.context, WORK)
        )
        with np.errstate(all="ignore"):
            result, model = close(field, labelled(tiny_windows(0), 13), verbs=verbs)
        assert result.num_steps > 0
        assert result.tensors["response/choose.choice"][:2].tolist() == [0, 0]
        assert all(np.isfinite(value).all() for value in result.private.values())
        np.testing.assert_array_equal(
            result.private["personal/shared/head.weight"], model["shared/head.weight"]
        )

    @pytest.mark.parametrize("count", [0, 1, 2, 11, 31, 32, 33])
    def test_a_device_with_too_few_labels_to_judge_by_trains_on_all_of_them(
        self, count: int
    ) -> None:
        """With 31 labelled windows none is held out, with 32 eight are."""
        field, few = played("fedavg+personal+none"), tiny_windows(0)
        x, y = (np.concatenate([values] * 3) for values in (few.train_x, few.train_y))
        closing = field.algorithm.coordinator.closing(field.state.context, WORK)
        asked = by_labels(closing, count, trains=True)
        result, _ = close(
            field, labelled(Windows(x, y, few.test_x, few.test_y), count), verbs=asked
        )
        assert (result.num_steps > 0) == (count >= 2)
        assert result.tensors["response/choose.windows"] == (count // 4 if count >= 32 else 0)
        choice = result.tensors["response/choose.choice"].tolist()
        if count <= 31:
            assert choice == ([1, 0, 0, 0] if count >= 11 else [0, 0, 1, 0]), (
                "two labels are of a part of the classes"
            )
            usable = result.tensors["response/choose.usable"].tolist()
            assert usable == ([1, 1, 1, 1] if count >= 11 else [0, 0, 1, 1]), "it says so"

    def test_a_training_that_helps_is_kept_half_way(self) -> None:
        """A device whose classes are called otherwise than everybody else's."""
        field = played("fedavg+personal+none", rounds=3)
        windows = tiny_windows(0)
        other = Windows(
            windows.train_x,
            (windows.train_y + 1) % CLASSES,
            windows.test_x,
            (windows.test_y + 1) % CLASSES,
        )
        served, _ = close(field, other, verbs=(Evaluate(),))
        result, _ = close(field, other)
        assert result.evaluated.num_correct > served.evaluated.num_correct
        assert result.tensors["response/choose.choice"][:2].sum() == 1

    def test_held_out_windows_are_not_trained_on(self) -> None:
        field = make_field("fedavg+personal:holdout=0.5:epochs=3+none", num_devices=1)
        result, _ = close(field, tiny_windows(0))
        assert (result.num_steps, result.trained.num_examples) == (3 * 2, 0)
        assert result.tensors["response/choose.windows"] == 9

    @pytest.mark.parametrize("name", KEPT_WAYS)
    def test_a_device_without_any_window_keeps_the_model_as_it_is(self, name: str) -> None:
        field = played(f"fedavg+{name}+none")
        none = labelled(tiny_windows(0), 0)
        result, model = close(field, replace(none, unlabelled_x=none.train_x))
        kept = own_tensors(field.bundle, model, result.private)
        assert all(np.array_equal(kept[key], value) for key, value in model.items())
        executor = Executor(field.bundle, field.executors["d0"]._graphs, none)
        alone = executor.predict(model, {}, none.test_x)
        np.testing.assert_allclose(
            executor.predict(model, result.private, none.test_x), alone, atol=1e-6
        )

    def test_knn_per_takes_the_share_with_the_least_loss(self) -> None:
        field = played("fedavg+knn-per+none", rounds=2)
        result, _ = close(field, tiny_windows(0))
        losses, kept = (
            result.tensors["response/choose.loss"],
            result.tensors["response/choose.choice"],
        )
        assert losses.shape == (11,)
        assert losses[kept.argmax()] == losses.min()
        assert result.private[names.personal(SHARE)] == pytest.approx(kept.argmax() / 10)
        assert result.num_steps == 0


def replace_train(verb: Train, **changes: Any) -> Train:
    """The verb with other fields."""
    import msgspec

    return msgspec.structs.replace(verb, **changes)


def test_the_guide_names_every_graph_that_an_owner_has_to_permit() -> None:
    field = make_field("personal", num_devices=2)
    digests = dict.fromkeys(field.state.models, "0" * 64)
    used = {
        verb.graph
        for verb in field.algorithm.programs(field.state, WORK, digests)["closing"]
        if isinstance(verb, Apply | Evaluate | Train)
    }
    guide = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    named = guide.partition("default algorithm](keep.md)'s last plan (")[2].partition(")")[0]
    assert sorted(used) == re.findall(r"`(\w+)`", named)


class TestWhatLeavesTheDevice:
    @pytest.mark.parametrize("privacy", sorted({*CHOICES["privacy"]} - {"no-privacy"}))
    @pytest.mark.parametrize("name", KEPT_WAYS)
    def test_under_a_privacy_mechanism_nothing_is_reported(self, privacy: str, name: str) -> None:
        field = played(f"fedavg+{name}+none+{privacy}")
        result, _ = close(field, tiny_windows(0))
        assert result.tensors == {}
        assert result.private[names.personal(KEYS)].any()

    def test_no_verb_of_the_plan_reports_but_choose_and_the_last(self) -> None:
        for objective in OBJECTIVES:
            spec = read_algorithm(with_personal(objective))
            coordinator = make_algorithm(spec).coordinator
            objective_made = make_objective(spec, tiny_model(str(spec)))
            context = coordinator.begin(
                {k: v.numpy() for k, v in objective_made.initial().items()}, 0
            )
            verbs = coordinator.closing(context, WORK)
            assert verbs[-2:] == (Apply("choose"), Evaluate("test", "assess"))
            assert [verb for verb in verbs[:-2] if getattr(verb, "report", True)] == []

    def test_default_with_privacy_is_refused_for_the_survey_of_its_grouping(self) -> None:
        with pytest.raises(
            ConfigError, match="survey their data for distfl, which no privacy mechanism covers"
        ):
            make_algorithm(read_algorithm("personal+gaussian"))


class TestSimulatedGraphs:
    def test_the_native_engine_answers_by_the_memory_as_torch_does(self) -> None:
        """It computes plain answers itself; those of a device that remembers are torch's."""
        field = played("fedavg+personal+none")
        result, model = close(field, tiny_windows(0))
        assert result.private[names.personal(SHARE)] > 0
        objective = make_objective(read_algorithm("fedavg+personal+none"), tiny_model("fedavg"))
        held = own_tensors(field.bundle, model, result.private) | {names.X: tiny_windows(0).test_x}
        native, eager = (
            NativeGraphs(objective, (CHANNELS, LENGTH), ["step"]),
            EagerGraphs(objective),
        )
        assert native.trains("step")
        found, expected = (
            graphs.run("predict", held)[names.PROBABILITIES] for graphs in (native, eager)
        )
        np.testing.assert_array_equal(found, expected)
