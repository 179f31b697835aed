"""Personal models at the end of a run: the choice and the graphs, compared with plain numpy."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from algorithms.composition import make_algorithm, make_objective, read_algorithm
from algorithms.core.contract import ObjectiveMemory
from algorithms.models.classifier import LOUDEST, Classifier, plausible
from algorithms.optimizers.base import slot_of
from algorithms.personalisation import memory as memory_rules
from algorithms.personalisation.keeping import (
    ABSENT,
    BEYOND,
    GAUGED,
    GENERAL,
    GLANCED,
    PRIOR,
    PRIOR_OF_TRAINED,
    TUNED,
    UNJUDGED_WAY,
    WAY,
    first_good,
    margins,
    variety,
)
from algorithms.personalisation.kept import CHOOSE, WORST
from algorithms.personalisation.memory import KEYS, SHARE, UNITS, Memory
from edge_client.core.policy import ranks
from edge_client.core.ports import Windows
from edge_client.work.executor import Executor
from export.describe import describe_bundle
from simulation.contract.fleet import (
    CHANNELS,
    CLASSES,
    LENGTH,
    WORK,
    make_field,
    tiny_model,
    tiny_windows,
)
from simulation.engine.graphs.eager import EagerGraphs
from tests.algorithms.closing_cases import KEPT_WAYS, close, labelled
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Window
from wire.errors import ConfigError
from wire.held import FEWEST
from wire.messages import Evaluate, Plan

Numbers = np.ndarray[Any, np.dtype[np.float32]]


class TestFirstGood:
    @staticmethod
    def plain(
        losses: Numbers, judged: Numbers, errors: float, usable: Numbers, unjudged: int
    ) -> int:
        """The place of the candidate, by loops in float64."""
        there = [i for i in range(losses.shape[1]) if usable[i]]
        rows = losses.astype(np.float64)[judged > 0]
        if len(rows) < FEWEST:
            return next(i for i in there if i >= unjudged)
        best = min(there, key=lambda i: rows[:, i].mean())
        for i in there:
            apart = rows[:, i] - rows[:, best]
            if apart.mean() <= min(BEYOND, errors * math.sqrt(apart.var(ddof=1) / len(rows))):
                return i
        raise AssertionError("the best is not worse than itself")

    @given(
        losses=arrays(
            np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.integers(0, 6)
        ),
        seed=st.integers(0, 999),
        errors=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    )
    def test_it_is_one_and_the_first_within_the_errors(
        self, losses: Numbers, seed: int, errors: float
    ) -> None:
        rng = np.random.default_rng(seed)
        judged = rng.integers(0, 2, len(losses)).astype(np.float32)
        usable = rng.integers(0, 2, losses.shape[1]).astype(np.float32)
        usable[rng.integers(len(usable))] = 1
        losses = np.asarray(
            (losses + rng.uniform(0, 0.01, losses.shape)) * judged[:, None], np.float32
        )
        unjudged = int(rng.integers(np.flatnonzero(usable)[-1] + 1))
        kept = first_good(
            torch.from_numpy(losses),
            torch.from_numpy(judged),
            errors,
            torch.from_numpy(usable),
            unjudged,
        ).numpy()
        assert sorted(kept)[-1] == kept.sum() == 1
        assert usable[kept.argmax()] == 1
        assert kept.argmax() == self.plain(losses, judged, errors, usable, unjudged)

    def test_the_one_for_that_is_kept_where_fewer_than_three_windows_judge(self) -> None:
        losses = torch.tensor([[5.0, 0.0, 1.0], [5.0, 0.0, 1.0], [5.0, 0.0, 1.0]])
        for unjudged, count, expected in (
            (0, 0, 0),
            (0, 2, 0),
            (0, 3, 1),
            (2, 0, 2),
            (2, 2, 2),
            (2, 3, 1),
        ):
            judged = (torch.arange(3) < count).float()
            assert (
                int(
                    first_good(
                        losses * judged[:, None], judged, 3.0, torch.ones(3), unjudged
                    ).argmax()
                )
                == expected
            )

    def test_a_better_candidate_within_the_errors_does_not_replace_the_first(self) -> None:
        """Differences 1.2, 0, 0: mean 0.4, standard error 0.4."""
        losses, judged = torch.tensor([[1.2, 0.0], [1.0, 1.0], [1.0, 1.0]]), torch.ones(3)
        assert int(first_good(losses, judged, 1.01, torch.ones(2), 0).argmax()) == 0
        assert int(first_good(losses, judged, 0.99, torch.ones(2), 0).argmax()) == 1

    def test_one_that_is_far_worse_is_passed_over_however_few_windows_say_so(self) -> None:
        """Differences 0.4, 0.6, 2: mean 1, standard error 0.5."""
        losses, judged = torch.tensor([[0.4, 0.0], [0.6, 0.0], [2.0, 0.0]]), torch.ones(3)
        assert int(first_good(losses, judged, 3.0, torch.ones(2), 0).argmax()) == 1
        assert int(first_good(losses / 2.01, judged, 3.0, torch.ones(2), 0).argmax()) == 0

    def test_standard_errors_are_those_of_the_differences(self) -> None:
        rng = np.random.default_rng(0)
        losses, judged = (
            rng.uniform(0, 3, (9, 3)).astype(np.float32),
            (np.arange(9) < 6).astype(np.float32),
        )
        above, error = margins(
            torch.from_numpy(losses * judged[:, None]), torch.from_numpy(judged), torch.ones(3)
        )
        apart = losses[:6] - losses[:6, [losses[:6].mean(0).argmin()]]
        np.testing.assert_allclose(above, apart.mean(0), atol=1e-6)
        np.testing.assert_allclose(error, apart.std(0, ddof=1) / math.sqrt(6), atol=1e-6)


def keeping_of(objective: Any) -> Any:
    """Return what an objective is wrapped with that makes its candidates and chooses."""
    return objective.graphs()[CHOOSE].__self__


class TestChoose:
    """The graph ``choose`` alone, on a memory that is set by hand: 8 rows, rows 0 to 3 held out."""

    @pytest.fixture(autouse=True)
    def nobody_has_a_neighbour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory_rules, "neighbours", lambda q, k, _: torch.zeros(len(q), len(k)))

    def chosen(
        self, tuned_loss: float, general_loss: float, elsewhere: float = 0.0, held: int = 4
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        objective: Any = make_objective(
            read_algorithm("fedavg+personal:memory=8+none"), tiny_model("fedavg")
        )
        tensors, keeping = objective.initial(), keeping_of(objective)
        rng = torch.Generator().manual_seed(0)
        for key in keeping.moving(tensors):
            tensors[slot_of(key, "before")] = tensors[key]
            tensors[key] = tensors[key] + torch.randn(tensors[key].shape, generator=rng).abs()
        probability = math.exp(-tuned_loss)
        guess = torch.full((8, CLASSES), (1 - probability) / (CLASSES - 1))
        guess[:, 0] = probability
        labels = torch.zeros(8, CLASSES)
        labels[:, 0] = 1
        width = tensors[KEYS].shape[1]
        memory = {
            "keys": torch.zeros(8, width),
            "guess": guess,
            "labels": labels,
            "holdout": (torch.arange(8) < held).float()[:, None],
        }
        memory["keys"][torch.arange(8), torch.arange(8)] = 1
        tensors |= {names.response("memorise", name): value for name, value in memory.items()}
        tensors[names.slot("memory.losses")][:held] = general_loss
        tensors[names.slot("memory.elsewhere")] += elsewhere
        tensors[KEYS][:, 0] = 0.25
        return tensors, keeping.choose(tensors, {}, {})

    def memory_in(self, tensors: dict[str, torch.Tensor]) -> Memory:
        keys, guess, labels, holdout = (
            tensors[names.response("memorise", name)]
            for name in ("keys", "guess", "labels", "holdout")
        )
        return Memory(keys, guess, labels, holdout.squeeze(1))

    def test_the_tuned_model_is_kept_with_its_memory(self) -> None:
        tensors, outputs = self.chosen(0.1, 2.0)
        assert outputs["metric/choice"].tolist() == [1, 0, 0, 0]
        torch.testing.assert_close(outputs["metric/loss"], torch.tensor([0.1, 0.1, 2.0, 2.0]))
        assert float(outputs["metric/windows"]) == 4
        assert torch.equal(outputs[names.following(KEYS)], self.memory_in(tensors).scaled)
        assert torch.equal(outputs[names.following(UNITS)], self.memory_in(tensors).units)
        assert float(outputs[names.following(SHARE)]) == 0.5
        assert torch.equal(outputs["next/shared/head.weight"], tensors["shared/head.weight"])

    def test_the_model_before_is_kept_with_the_memory_before(self) -> None:
        tensors, outputs = self.chosen(3.0, 0.5)
        assert outputs["metric/choice"].tolist() == [0, 0, 1, 0]
        assert torch.equal(outputs[names.following(KEYS)], tensors[KEYS])
        assert torch.equal(outputs[names.following(UNITS)], tensors[UNITS])
        assert torch.equal(outputs["next/shared/head.weight"], tensors["slot/before.head.weight"])

    def test_labels_of_a_part_of_the_classes_do_not_decide(self) -> None:
        """However well the tuned model does on the windows held out, which are of the classes with
        labels too."""
        assert self.chosen(0.1, 2.0, elsewhere=ABSENT - 0.01)[1]["metric/choice"].tolist() == [
            1,
            0,
            0,
            0,
        ]
        assert self.chosen(0.1, 2.0, elsewhere=ABSENT)[1]["metric/choice"].tolist() == [0, 0, 1, 0]

    def test_a_device_that_was_left_out_of_the_training_has_no_tuned_model(self) -> None:
        """Private tensors may have moved all the same: verbs besides the training move some."""
        assert self.chosen(0.1, 2.0, held=6)[1]["metric/choice"].tolist() == [1, 0, 0, 0]
        assert self.chosen(0.1, 2.0, held=7)[1]["metric/choice"].tolist() == [0, 0, 1, 0]

    def test_where_nothing_is_held_out_the_tuned_model_is_kept_if_all_classes_are_labelled(
        self,
    ) -> None:
        tensors, outputs = self.chosen(3.0, 0.5, held=0)
        assert (outputs["metric/choice"].tolist(), float(outputs["metric/windows"])) == (
            [1, 0, 0, 0],
            0,
        )
        assert torch.equal(outputs["next/shared/head.weight"], tensors["shared/head.weight"])
        assert self.chosen(0.1, 2.0, elsewhere=ABSENT, held=0)[1]["metric/choice"].tolist() == [
            0,
            0,
            1,
            0,
        ]

    @pytest.mark.parametrize("held", [1, 2])
    def test_windows_that_are_held_out_of_too_few_speak_against_the_training_that_missed_them(
        self, held: int
    ) -> None:
        """An older client holds two out where this one holds none out."""
        assert self.chosen(0.1, 2.0, held=held)[1]["metric/choice"].tolist() == [0, 0, 1, 0]

    def test_a_model_that_answers_with_no_number_is_never_kept_whoever_judges(self) -> None:
        for general_loss in (0.5, WORST):
            tensors, outputs = self.chosen(math.nan, general_loss)
            assert outputs["metric/choice"].tolist() == [0, 0, 1, 0]
            assert all(
                torch.equal(outputs[f"next/{k}"], tensors[slot_of(k, "before")])
                for k in ("shared/head.weight", "shared/head.bias")
            )
            assert all(bool(torch.isfinite(value).all()) for value in outputs.values())


class TestElsewhere:
    """Eight rows: two with the label 0, one with the label 1, four without, the last empty."""

    def memory(self, guess_of_two: float) -> Memory:
        labels, guess = torch.zeros(8, 3), torch.zeros(8, 3)
        labels[[0, 1], 0] = labels[2, 1] = 1
        guess[:7] = torch.tensor([1 - guess_of_two, 0.0, guess_of_two])
        return Memory(torch.zeros(8, 4), guess, labels, torch.zeros(8))

    @pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
    def test_it_is_what_the_model_says_of_classes_without_labels(self, share: float) -> None:
        assert float(self.memory(share).elsewhere()) == pytest.approx(share)

    def test_it_is_none_where_all_windows_have_labels_or_none_has(self) -> None:
        memory = self.memory(1.0)
        assert (
            float(
                replace(
                    memory,
                    labels=torch.eye(3)[[0, 0, 1, 1, 0, 0, 1, 0]] * (torch.arange(8) < 7)[:, None],
                ).elsewhere()
            )
            == 0
        )
        assert float(replace(memory, labels=torch.zeros(8, 3)).elsewhere()) == 0

    @pytest.mark.parametrize("num_labelled", [1, 7])
    def test_it_is_all_where_labels_are_of_one_class_with_windows_without_labels_and_without(
        self, num_labelled: int
    ) -> None:
        labels = torch.zeros(8, 3)
        labels[:num_labelled, 1] = 1
        assert float(replace(self.memory(0.0), labels=labels).elsewhere()) == 1


class TestBlend:
    @pytest.mark.parametrize(
        ("held", "num_labelled", "way"),
        [(3, 9, WAY), (0, 32, UNJUDGED_WAY), (0, 8, UNJUDGED_WAY / 4), (0, 0, 0.0)],
    )
    def test_it_is_a_mean_of_the_models_before_and_after_and_few_labels_move_it_little(
        self, held: int, num_labelled: int, way: float
    ) -> None:
        objective: Any = make_objective(read_algorithm("ditto+personal+none"), tiny_model("ditto"))
        tensors, keeping = objective.initial(), keeping_of(objective)
        for number, key in enumerate(keeping.moving(tensors)):
            tensors[slot_of(key, "before")] = tensors[key] + number
        size, width = tensors[KEYS].shape
        rows = {
            "keys": torch.zeros(size, width),
            "guess": torch.zeros(size, CLASSES),
            "labels": torch.zeros(size, CLASSES),
        }
        rows["labels"][:num_labelled, 0] = 1
        rows["holdout"] = (torch.arange(size) < held).float()[:, None]
        outputs = keeping.blend(
            tensors | {names.response("memorise", name): value for name, value in rows.items()},
            {},
            {},
        )
        for number, key in enumerate(keeping.moving(tensors)):
            torch.testing.assert_close(
                outputs[names.following(key)], tensors[key] + (1 - way) * number
            )


class TestMemorise:
    """The verb ``evaluate`` over the split ``windows`` with the graph ``memorise``."""

    def rows_of(self, name: str, num_labelled: int, num_all: int, size: int) -> Tensors:
        rng = np.random.default_rng(num_all)
        x, y = (
            rng.normal(size=(num_all, CHANNELS, LENGTH)).astype(np.float32),
            np.arange(num_all) % CLASSES,
        )
        field = make_field(f"fedavg+{name}:memory={size}+none", num_devices=1)
        windows = Windows(x[:num_labelled], y[:num_labelled], x[:2], y[:2], x[num_labelled:])
        result, _ = close(field, windows, verbs=(Evaluate("windows", "memorise", holdout=0.25),))
        return names.part(result.tensors, names.RESPONSE)

    @pytest.mark.parametrize(
        ("num_all", "size"), [(5, 16), (16, 16), (17, 16), (40, 16), (300, 16), (1000, 64)]
    )
    def test_each_row_holds_at_most_one_window_and_these_are_evenly_spread(
        self, num_all: int, size: int
    ) -> None:
        found = self.rows_of("personal", num_all, num_all, size)
        labels = found["memorise.labels"]
        assert set(np.unique(labels)) <= {0.0, 1.0}
        np.testing.assert_allclose(
            found["memorise.guess"].sum(1)[: min(num_all, size)], 1, rtol=1e-5
        )
        assert found["memorise.guess"].sum(1)[min(num_all, size) :].sum() == 0
        places = np.argsort(ranks(num_all, 0))[:size].tolist()
        assert labels[: len(places)].argmax(1).tolist() == [place % CLASSES for place in places]
        halves = sum(place < num_all / 2 for place in places)
        assert abs(halves - len(places) / 2) <= 2, "spread over all of them"

    @pytest.mark.parametrize("num_all", [96, 128, 256, 1024])
    def test_held_windows_are_among_those_that_are_remembered(self, num_all: int) -> None:
        size = num_all // 4
        holdout = self.rows_of("personal", num_all, num_all, size)["memorise.holdout"].sum()
        assert holdout == pytest.approx(0.25 * size, abs=2 + size / 16)

    def test_windows_without_labels_push_none_with_a_label_out(self) -> None:
        assert self.rows_of("personal", 12, 600, 16)["memorise.labels"].sum() == 12

    def test_windows_with_labels_do_not_push_all_without_out(self) -> None:
        """Or nobody would see what the labels know nothing of."""
        found = self.rows_of("personal", 100, 300, 16)
        assert (found["memorise.labels"].sum(), (found["memorise.guess"].sum(1) > 0).sum()) == (
            12,
            16,
        )

    def test_windows_without_labels_have_a_row_and_no_label_or_no_row(self) -> None:
        for name, rows in (("personal", 12), ("knn-per", 5)):
            found = self.rows_of(name, 5, 12, 16)
            assert (found["memorise.guess"].sum(1) > 0).sum() == rows
            assert found["memorise.labels"].sum() == 5
            assert found["memorise.holdout"][5:].sum() == 0


def with_tensors(model: Classifier, tensors: Tensors) -> Classifier:
    """A copy of the model in evaluation mode, with these shared tensors and statistics."""
    copied = deepcopy(model).eval()
    copied.load_state_dict(
        {
            names.name_of(k): torch.from_numpy(v)
            for k, v in tensors.items()
            if names.role_of(k) in names.EXCHANGED
        },
        strict=False,
    )
    return copied


class TestVariety:
    def test_it_is_the_number_of_classes_that_there_seem_to_be(self) -> None:
        assert float(variety(torch.tensor([1.0, 0.0, 0.0, 0.0]))) == pytest.approx(0, abs=1e-6)
        assert float(variety(torch.tensor([0.5, 0.5, 0.0, 0.0]))) == pytest.approx(1 / 3)
        assert float(variety(torch.full((4,), 0.25))) == pytest.approx(1)
        assert float(variety(torch.ones(1))) == 0


class TestPlausible:
    def test_real_windows_stay_as_they_are_to_the_bit_and_a_glitch_gets_small(self) -> None:
        model, x = tiny_model("fedavg"), torch.from_numpy(tiny_windows(0).train_x)
        assert torch.equal(plausible(model, x), x)
        glitch = x.clone()
        glitch[2, 1] *= 1e4
        tamed = plausible(model, glitch)
        assert torch.equal(tamed[:, 0], x[:, 0])
        assert float(model.scale(tamed)[2, 1].square().mean()) < LOUDEST

    def test_the_survey_by_which_devices_are_placed_is_without_it_too(self) -> None:
        objective: Any = make_objective(read_algorithm("distfl"), tiny_model("distfl"))
        x, y = torch.from_numpy(tiny_windows(0).train_x), torch.from_numpy(tiny_windows(0).train_y)
        glitch = x.clone()
        glitch[2] *= 1e4
        usual, spoilt = (
            objective.survey(objective.initial(), {"x": windows, "y": y}) for windows in (x, glitch)
        )
        for name, value in usual.items():
            if "variance" in name:
                assert float((spoilt[name] - value).abs().max()) < 2 * float(value.abs().max())


class TestRecalibrate:
    @pytest.mark.parametrize("count", [4, 1, 0])
    def test_statistics_move_towards_those_of_all_windows_as_a_plain_program_says(
        self, count: int
    ) -> None:
        field = make_field("fedavg+recalibrated", num_devices=1)
        windows = labelled(tiny_windows(1), count)
        result, model = close(field, windows)
        every = np.concatenate([windows.train_x, windows.unlabelled_x])
        prior = PRIOR + (PRIOR_OF_TRAINED - PRIOR) * count / len(every)
        with torch.no_grad():
            guess = torch.softmax(
                with_tensors(field.model, model)(torch.from_numpy(every)), 1
            ).numpy()
        guess[:count] = np.eye(CLASSES)[windows.train_y]
        mean = guess.mean(0)
        various = (np.exp(-np.sum(mean * np.log(np.maximum(mean, 1e-9)))) - 1) / (CLASSES - 1)
        share = len(every) * various**2 / (len(every) * various**2 + prior)
        layer = next(n for n, m in field.model.named_modules() if isinstance(m, nn.BatchNorm1d))
        seen: list[torch.Tensor] = []
        watch: Any = dict(field.model.named_modules())[layer].register_forward_pre_hook(
            lambda _m, given: seen.append(given[0])
        )
        with torch.no_grad():
            field.model.eval()(torch.from_numpy(every))
        watch.remove()
        for statistic, value in (
            ("running_mean", seen[0].mean((0, 2))),
            ("running_var", seen[0].var((0, 2), unbiased=False)),
        ):
            key = f"statistic/{layer}.{statistic}"
            expected = share * value.numpy() + (1 - share) * model[key]
            np.testing.assert_allclose(
                result.private[names.personal(key)], expected, rtol=2e-2, atol=1e-4
            )
            assert np.abs(expected - model[key]).max() > 0.01

    def statistics(self, x: Numbers, y: Array | None = None) -> tuple[Numbers, Numbers]:
        """All running statistics of a device with these windows, after and before, flat; without
        `y` they have no labels."""
        windows = Windows(x[:0], np.zeros(0, np.int64), x[:2], np.zeros(2, np.int64), x)
        if y is not None:
            windows = Windows(x, y, x[:2], y[:2])
        result, model = close(make_field("fedavg+recalibrated", num_devices=1), windows)
        keys = sorted(key for key in model if names.role_of(key) == names.STATISTIC)
        after = np.concatenate([result.private[names.personal(key)].ravel() for key in keys])
        return after, np.concatenate([model[key].ravel() for key in keys])

    def test_windows_of_one_class_are_no_measure_of_all_classes(self) -> None:
        x, y = tiny_windows(1).train_x, tiny_windows(1).train_y
        one, before = self.statistics(x, np.zeros_like(y))
        every, _ = self.statistics(x, np.arange(len(y)) % CLASSES)
        np.testing.assert_array_equal(one, before)
        assert np.abs(every - before).max() > 0.01
        alike = np.repeat(x[:1], 40, 0)  # the model says one class of all
        alone, _ = self.statistics(alike)
        various, _ = self.statistics(np.concatenate([x, x, x])[:40])
        assert np.abs(alone - before).max() < np.abs(various - before).max()

    def test_one_glitch_of_the_sensor_is_not_in_all_statistics(self) -> None:
        x = np.concatenate([tiny_windows(n).train_x for n in range(3)])
        usual, before = self.statistics(x)
        glitch = x.copy()
        glitch[3, 0] *= 1000
        spoilt, _ = self.statistics(glitch)
        assert np.abs(spoilt - usual).max() < np.abs(usual - before).max()

    def test_no_more_windows_are_measured_than_count(self) -> None:
        verbs = make_algorithm(read_algorithm("fedavg+personal+none")).coordinator.closing(
            ObjectiveMemory(), WORK
        )
        asked = {verb.graph: verb.most for verb in verbs if isinstance(verb, Evaluate)}
        assert asked == {"glance": GLANCED, "gauge": GAUGED, "memorise": 256, "assess": 0}

    def test_parameters_stay_as_they_are(self) -> None:
        result, _ = close(make_field("fedavg+recalibrated", num_devices=1), tiny_windows(0))
        assert [key for key in result.private if "shared" in key] == []

    def test_a_model_without_batch_norm_gets_through(self) -> None:
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * LENGTH, 6), nn.ReLU())
        plain = Classifier(nn.Identity(), extractor, nn.Linear(6, CLASSES))
        plain.shape = (CHANNELS, LENGTH)
        spec = read_algorithm("fedavg+personal+none")
        objective = make_objective(spec, plain)
        bundle = describe_bundle(
            objective,
            name="plain",
            classes=("a", "b", "c"),
            window=Window(("u", "v"), LENGTH, LENGTH),
        )
        verbs = make_algorithm(spec).coordinator.closing(
            make_algorithm(spec).coordinator.begin({}, 0), WORK
        )
        model = names.of_role(bundle.initial, *names.EXCHANGED)
        plan = Plan("r", 1, 1, 0, "d0", "0" * 64, "0" * 64, verbs, 7, 0.0)
        result = Executor(bundle, EagerGraphs(objective), tiny_windows(0)).execute(
            plan, model, {}, lambda _d: {}
        )
        assert result.evaluated.num_examples == 6


def test_recipes_name_models_that_exist_and_general_comes_after_tuned() -> None:
    for name in KEPT_WAYS:
        recipe = read_algorithm(f"{name}+none").recipe
        assert recipe
        models = [candidate.model for candidate in recipe.candidates]
        assert models == sorted(models, key=[TUNED, GENERAL].index)


@pytest.mark.parametrize(
    "text",
    [
        "personal:memory=7",
        "personal:holdout=0",
        "personal:holdout=0.6",
        "knn-per:memory=4097",
        "personal:epochs=-1",
    ],
)
def test_an_option_out_of_its_limits_is_one_clear_error(text: str) -> None:
    key = text.split(":")[1].split("=")[0]
    with pytest.raises(ConfigError, match=f"{key} must be a .*, got '"):
        read_algorithm(text)
