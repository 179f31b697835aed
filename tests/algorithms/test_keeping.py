"""What a device keeps when a run is over: the choice beside plain numpy, and closing plans carried out on tiny devices."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from algorithms.objectives.supervised import slot_of
from algorithms.personalisation.keeping import FEWEST, GENERAL, PRIOR, TUNED, Keeping, first_good
from algorithms.personalisation.memory import KEYS, LABELS, SHARE, WORST
from algorithms.registry import OBJECTIVES, PRIVACY, make_algorithm, make_objective, read_algorithm
from edge_client.core.own import own_tensors
from edge_client.core.ports import Windows
from edge_client.executor import Executor, Result
from export.describe import describe_bundle
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.native import NativeGraphs
from tests.algorithms.test_every_choice import spelled
from tests.contracts.algorithm import CHANNELS, CLASSES, LENGTH, WORK, Field, make_field, tiny_model, tiny_windows
from wire import names
from wire.bundle import Window
from wire.errors import ConfigError
from wire.messages import Apply, Evaluate, Plan, Train, Verb
from wire.tensors import Tensors

Numbers = np.ndarray[Any, np.dtype[np.float32]]
KEPT_WAYS = ("personal", "recalibrated", "knn-per")


def labelled(windows: Windows, count: int) -> Windows:
    """The same device with labels for its first windows alone; the others stay as windows without labels."""
    x, y = windows.train_x, windows.train_y
    return Windows(x[:count], y[:count], windows.test_x, windows.test_y, x[count:])


def close(field: Field, windows: Windows, private: Tensors | None = None, verbs: tuple[Verb, ...] = ()) -> tuple[Result, Tensors]:
    """Device d0 with these windows carries out the closing plan, or other verbs; its result, and the model that it started from."""
    received = field.algorithm.received(field.state)
    blobs = {key: {**model, **received[key]} for key, model in field.state.models.items()}
    digests = {key: f"{i:064x}" for i, key in enumerate(sorted(blobs))}
    asked = verbs or field.algorithm.programs(field.state, WORK, digests)["closing"]
    key = field.algorithm.start(field.state.memory, "d0")
    plan = Plan("r", 1, 9, 0, "d0", "0" * 64, digests[key], asked, 7, 0.0)
    executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
    return executor.execute(plan, blobs[key], private or {}, lambda digest: {}), blobs[key]


def played(name: str, rounds: int = 1) -> Field:
    field = make_field(name, num_devices=2)
    field.play(rounds)
    return field


def with_personal(objective: str) -> str:
    """The objective's name with `personal`, on one group unless it asks for its own grouping."""
    return f"{spelled(objective)}+personal" + ("" if OBJECTIVES[objective].server.grouping else "+none")


class TestFirstGood:
    @staticmethod
    def plain(losses: Numbers, judged: Numbers, errors: float, usable: Numbers) -> int:
        """The place of the candidate, by loops in float64."""
        there = [i for i in range(losses.shape[1]) if usable[i]]
        rows = losses.astype(np.float64)[judged > 0]
        if len(rows) < FEWEST:
            return there[0]
        best = min(there, key=lambda i: rows[:, i].mean())
        for i in there:
            apart = rows[:, i] - rows[:, best]
            if apart.mean() <= errors * math.sqrt(apart.var(ddof=1) / len(rows)):
                return i
        raise AssertionError("the best is not worse than itself")

    @settings(deadline=None, max_examples=200)
    @given(
        losses=arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.integers(0, 6)),
        seed=st.integers(0, 999),
        errors=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    )
    def test_it_is_one_and_the_first_within_the_errors(self, losses: Numbers, seed: int, errors: float) -> None:
        rng = np.random.default_rng(seed)
        judged = rng.integers(0, 2, len(losses)).astype(np.float32)
        usable = rng.integers(0, 2, losses.shape[1]).astype(np.float32)
        usable[rng.integers(len(usable))] = 1
        losses = losses * judged[:, None] + rng.uniform(0, 0.01, losses.shape).astype(np.float32) * judged[:, None]
        kept = first_good(torch.from_numpy(losses), torch.from_numpy(judged), errors, torch.from_numpy(usable)).numpy()
        assert sorted(kept)[-1] == kept.sum() == 1
        assert usable[kept.argmax()] == 1
        assert kept.argmax() == self.plain(losses, judged, errors, usable)

    def test_the_first_is_kept_where_fewer_than_three_windows_judge(self) -> None:
        losses = torch.tensor([[5.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
        for count, expected in ((0, 0), (2, 0), (3, 1)):
            judged = (torch.arange(3) < count).float()
            assert int(first_good(losses * judged[:, None], judged, 3.0, torch.ones(2)).argmax()) == expected

    def test_a_better_candidate_within_the_errors_does_not_replace_the_first(self) -> None:
        """Differences 2, 0, 0: mean 0.667, standard error 0.667."""
        losses, judged = torch.tensor([[2.0, 0.0], [1.0, 1.0], [1.0, 1.0]]), torch.ones(3)
        assert int(first_good(losses, judged, 1.01, torch.ones(2)).argmax()) == 0
        assert int(first_good(losses, judged, 0.99, torch.ones(2)).argmax()) == 1


class TestChoose:
    """The graph ``choose`` alone, on a memory that is set by hand: 8 rows, rows 0 to 3 held out."""

    def chosen(self, tuned_loss: float, general_loss: float) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        objective: Any = make_objective(read_algorithm("fedavg+personal:memory=8+none"), tiny_model("fedavg"))
        tensors = objective.initial()
        rng = torch.Generator().manual_seed(0)
        for key in objective.moving(tensors):
            tensors[slot_of(key, "before")] = tensors[key]
            tensors[key] = tensors[key] + torch.randn(tensors[key].shape, generator=rng).abs()
        probability = math.exp(-tuned_loss)
        guess = torch.full((8, CLASSES), (1 - probability) / (CLASSES - 1))
        guess[:, 0] = probability
        labels = torch.zeros(8, CLASSES)
        labels[:, 0] = 1
        width = tensors[KEYS].shape[1]
        memory = {"keys": torch.zeros(8, width), "guess": guess, "labels": labels, "held": (torch.arange(8) < 4).float()[:, None]}
        memory["keys"][torch.arange(8), torch.arange(8)] = 1  # nobody has a neighbour
        tensors |= {names.response("memorise", name): value for name, value in memory.items()}
        tensors[names.slot("memory.losses")][:4] = general_loss
        tensors[KEYS][:, 0] = 0.25
        return tensors, objective.choose(tensors, {}, {})

    def test_the_tuned_model_is_kept_with_its_memory(self) -> None:
        tensors, outputs = self.chosen(0.1, 2.0)
        assert outputs["metric/kept"].tolist() == [1, 0, 0, 0]
        torch.testing.assert_close(outputs["metric/loss"], torch.tensor([0.1, 0.1, 2.0, 2.0]))
        assert float(outputs["metric/windows"]) == 4
        assert torch.equal(outputs[names.following(KEYS)], tensors[names.response("memorise", "keys")])
        assert float(outputs[names.following(SHARE)]) == 0.5
        assert torch.equal(outputs["next/shared/head.weight"], tensors["shared/head.weight"])

    def test_the_model_before_is_kept_with_the_memory_before(self) -> None:
        tensors, outputs = self.chosen(3.0, 0.5)
        assert outputs["metric/kept"].tolist() == [0, 0, 1, 0]
        assert torch.equal(outputs[names.following(KEYS)], tensors[KEYS])
        assert torch.equal(outputs["next/shared/head.weight"], tensors["slot/before.head.weight"])

    def test_a_model_that_answers_with_no_number_is_never_kept_whoever_judges(self) -> None:
        for general_loss in (0.5, WORST):
            tensors, outputs = self.chosen(math.nan, general_loss)
            assert outputs["metric/kept"].tolist() == [0, 0, 1, 0]
            assert all(torch.equal(outputs[f"next/{k}"], tensors[slot_of(k, "before")]) for k in ("shared/head.weight", "shared/head.bias"))
            assert all(bool(torch.isfinite(value).all()) for value in outputs.values())


class TestBlend:
    def test_it_is_the_mean_of_the_models_before_and_after(self) -> None:
        objective: Any = make_objective(read_algorithm("ditto+personal+none"), tiny_model("ditto"))
        tensors = objective.initial()
        for number, key in enumerate(objective.moving(tensors)):
            tensors[slot_of(key, "before")] = tensors[key] + number
        outputs = objective.blend(tensors, {}, {})
        for number, key in enumerate(objective.moving(tensors)):
            torch.testing.assert_close(outputs[names.following(key)], tensors[key] + number / 2)


class TestMemorise:
    """The verb ``evaluate`` over the split ``windows`` with the graph ``memorise``."""

    def rows_of(self, name: str, num_labelled: int, num_all: int, size: int) -> Tensors:
        rng = np.random.default_rng(num_all)
        x, y = rng.normal(size=(num_all, CHANNELS, LENGTH)).astype(np.float32), np.arange(num_all) % CLASSES
        field = make_field(f"fedavg+{name}:memory={size}+none", num_devices=1)
        windows = Windows(x[:num_labelled], y[:num_labelled], x[:2], y[:2], x[num_labelled:])
        result, _ = close(field, windows, verbs=(Evaluate("windows", "memorise", holdout=0.25),))
        return names.part(result.tensors, names.RESPONSE)

    @pytest.mark.parametrize(("num_all", "size"), [(5, 16), (16, 16), (17, 16), (40, 16), (300, 16), (1000, 64)])
    def test_each_row_holds_at_most_one_window_and_these_are_evenly_spread(self, num_all: int, size: int) -> None:
        found = self.rows_of("personal", num_all, num_all, size)
        labels = found["memorise.labels"]
        assert set(np.unique(labels)) <= {0.0, 1.0}
        np.testing.assert_allclose(found["memorise.guess"].sum(1)[: min(num_all, size)], 1, rtol=1e-5)
        assert found["memorise.guess"].sum(1)[min(num_all, size) :].sum() == 0
        places = [math.ceil(row * num_all / size) for row in range(size)] if num_all > size else list(range(num_all))
        assert labels[: len(places)].argmax(1).tolist() == [place % CLASSES for place in places]

    def test_windows_without_labels_have_a_row_and_no_label_or_no_row(self) -> None:
        for name, rows in (("personal", 12), ("knn-per", 5)):
            found = self.rows_of(name, 5, 12, 16)
            assert (found["memorise.guess"].sum(1) > 0).sum() == rows
            assert found["memorise.labels"].sum() == 5
            assert found["memorise.held"][5:].sum() == 0


class TestRecalibrate:
    def test_statistics_move_towards_those_of_all_windows_as_a_plain_program_says(self) -> None:
        field = make_field("fedavg+recalibrated", num_devices=1)
        windows = labelled(tiny_windows(1), 4)
        result, model = close(field, windows)
        every = np.concatenate([windows.train_x, windows.unlabelled_x])
        share = len(every) / (len(every) + PRIOR)
        layer = next(n for n, m in field.model.named_modules() if isinstance(m, nn.BatchNorm1d))
        seen: list[torch.Tensor] = []
        watch: Any = dict(field.model.named_modules())[layer].register_forward_pre_hook(lambda _m, given: seen.append(given[0]))
        with torch.no_grad():
            field.model.eval()(torch.from_numpy(every))
        watch.remove()
        for statistic, value in (("running_mean", seen[0].mean((0, 2))), ("running_var", seen[0].var((0, 2), unbiased=False))):
            key = f"statistic/{layer}.{statistic}"
            expected = share * value.numpy() + (1 - share) * model[key]
            np.testing.assert_allclose(result.private[names.kept(key)], expected, rtol=2e-2, atol=1e-4)
            assert np.abs(expected - model[key]).max() > 0.01

    def test_parameters_stay_as_they_are(self) -> None:
        result, _ = close(make_field("fedavg+recalibrated", num_devices=1), tiny_windows(0))
        assert [key for key in result.private if "shared" in key] == []

    def test_a_model_without_batch_norm_gets_through(self) -> None:
        class Plain(nn.Module):
            shape = (CHANNELS, LENGTH)

            def __init__(self) -> None:
                super().__init__()
                self.extractor, self.head = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * LENGTH, 6), nn.ReLU()), nn.Linear(6, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                made: torch.Tensor = self.head(self.extractor(x))
                return made

        spec = read_algorithm("fedavg+personal+none")
        objective: Any = make_objective(spec, Plain())  # type: ignore[arg-type]
        bundle = describe_bundle(objective, name="plain", classes=("a", "b", "c"), window=Window(("u", "v"), LENGTH, LENGTH))
        verbs = make_algorithm(spec).coordinator.closing(make_algorithm(spec).coordinator.begin({}, 0), WORK)
        model = {k: v for k, v in bundle.initial.items() if names.is_exchanged(k)}
        plan = Plan("r", 1, 1, 0, "d0", "0" * 64, "0" * 64, verbs, 7, 0.0)
        result = Executor(bundle, EagerGraphs(objective), tiny_windows(0)).execute(plan, model, {}, lambda _d: {})
        assert result.evaluated.num_examples == 6


@pytest.mark.parametrize("objective", list(OBJECTIVES))
class TestEveryObjective:
    """Each objective with `personal`: its closing plan, on devices with all labels, one label, and none."""

    def test_graphs_and_tensors_have_names_of_their_own(self, objective: str) -> None:
        base = OBJECTIVES[objective].device
        spec = read_algorithm(with_personal(objective))
        made: Any = make_objective(spec, tiny_model(str(spec)))
        plain = make_objective(read_algorithm(f"{spelled(objective)}"), tiny_model(str(spec)))
        own = {name for name in vars(Keeping) if not name.startswith("_")} - {
            "initial",
            "graphs",
            "predict",
            "has_memory",
            "sgd_graphs",
            "model_answers",
        }
        assert [name for name in sorted(own) if hasattr(base, name)] == []
        assert set(plain.graphs()) < set(made.graphs())
        tensors = made.initial()
        assert set(plain.initial()) < set(tensors)
        slots = [slot_of(key, "before") for key in made.moving(tensors)]
        assert len(slots) == len(set(slots))
        assert {k for k in tensors if names.role_of(k) == "private"} - set(made.moving(tensors)) == {KEYS, LABELS, SHARE}

    def test_the_closing_plan_is_carried_out_with_any_labels_and_reports_scores_alone(self, objective: str) -> None:
        field = played(with_personal(objective))
        every = tiny_windows(0)
        for count in (len(every.train_y), 1, 0):
            windows = labelled(every, count)
            result, model = close(field, windows, field.kept["d0"] if count > 1 else {})
            assert set(result.tensors) == {"response/choose.kept", "response/choose.loss", "response/choose.windows"}
            assert result.tensors["response/choose.kept"].sum() == 1
            assert all(np.isfinite(value).all() for value in [*result.private.values(), *result.tensors.values()])
            assert result.evaluated.num_examples == len(every.test_y)
            executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
            answers = executor.predict(model, result.private, every.test_x)
            np.testing.assert_allclose(answers.sum(1), 1, atol=1e-4)
            assert (answers.argmax(1) == every.test_y).sum() == result.evaluated.num_correct
            if count < 2:
                assert result.num_steps == 0
                assert result.tensors["response/choose.kept"][0] == 1


class TestWhatIsKept:
    def prefer_general(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from algorithms.personalisation import keeping

        worst = lambda losses, judged, errors, usable: torch.tensor([0.0, 0.0, 1.0, 0.0])  # noqa: E731
        monkeypatch.setattr(keeping, "first_good", worst)

    @pytest.mark.parametrize("objective", list(OBJECTIVES))
    def test_without_the_training_every_bit_is_as_it_was_before_it(self, objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same plan is cut off before its training; private tensors too are those that the device has there."""
        self.prefer_general(monkeypatch)
        field = played(with_personal(objective))
        windows, private = tiny_windows(0), field.kept["d0"]
        verbs = field.algorithm.coordinator.closing(field.state.context, WORK)
        at = verbs.index(Apply("baseline", report=False))
        before, model = close(field, windows, private, verbs[: at + 1])
        after, _ = close(field, windows, private, verbs)
        assert after.num_steps > before.num_steps
        one, two = (own_tensors(field.bundle, model, result.private) for result in (before, after))
        made: Any = make_objective(read_algorithm(with_personal(objective)), tiny_model(with_personal(objective)))
        for key in made.moving(made.initial()):
            np.testing.assert_array_equal(one[key], two[key], err_msg=key)
        np.testing.assert_array_equal(one[KEYS], two[KEYS])

    def test_training_that_diverges_leaves_the_model_as_it_was(self) -> None:
        field = played("fedavg+personal+none")
        verbs = tuple(
            replace_train(verb, hyper={"lr": 1e30}) if isinstance(verb, Train) else verb
            for verb in field.algorithm.coordinator.closing(field.state.context, WORK)
        )
        with np.errstate(all="ignore"):
            result, model = close(field, labelled(tiny_windows(0), 4), verbs=verbs)  # two windows judge: too few to choose by
        assert result.num_steps > 0
        assert result.tensors["response/choose.kept"].tolist() == [0, 0, 1, 0]
        assert all(np.isfinite(value).all() for value in result.private.values())
        np.testing.assert_array_equal(result.private["kept/shared/head.weight"], model["shared/head.weight"])

    def test_a_training_that_helps_is_kept_half_way(self) -> None:
        """A device whose classes are called otherwise than everybody else's."""
        field = played("fedavg+personal+none", rounds=3)
        windows = tiny_windows(0)
        other = Windows(windows.train_x, (windows.train_y + 1) % CLASSES, windows.test_x, (windows.test_y + 1) % CLASSES)
        served, _ = close(field, other, verbs=(Evaluate(),))
        result, _ = close(field, other)
        assert result.evaluated.num_correct > served.evaluated.num_correct
        assert result.tensors["response/choose.kept"][:2].sum() == 1

    def test_held_out_windows_are_not_trained_on(self) -> None:
        field = make_field("fedavg+personal:holdout=0.5:epochs=3+none", num_devices=1)
        result, _ = close(field, tiny_windows(0))
        assert result.trained.num_examples == 3 * 9
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
        np.testing.assert_allclose(executor.predict(model, result.private, none.test_x), alone, atol=1e-6)

    def test_knn_per_takes_the_share_with_the_least_loss(self) -> None:
        field = played("fedavg+knn-per+none", rounds=2)
        result, _ = close(field, tiny_windows(0))
        losses, kept = result.tensors["response/choose.loss"], result.tensors["response/choose.kept"]
        assert losses.shape == (11,)
        assert losses[kept.argmax()] == losses.min()
        assert result.private[SHARE] == pytest.approx(kept.argmax() / 10)
        assert result.num_steps == 0


def replace_train(verb: Train, **changes: Any) -> Train:
    """The verb with other fields."""
    import msgspec

    return msgspec.structs.replace(verb, **changes)


class TestWhatLeavesTheDevice:
    @pytest.mark.parametrize("privacy", [name for name in PRIVACY if name != "no-privacy"])
    @pytest.mark.parametrize("name", KEPT_WAYS)
    def test_under_a_privacy_mechanism_nothing_is_reported(self, privacy: str, name: str) -> None:
        field = played(f"fedavg+{name}+none+{privacy}")
        result, _ = close(field, tiny_windows(0))
        assert result.tensors == {}
        assert result.private[KEYS].any()

    def test_no_verb_of_the_plan_reports_but_choose_and_the_last(self) -> None:
        for objective in OBJECTIVES:
            spec = read_algorithm(with_personal(objective))
            coordinator = make_algorithm(spec).coordinator
            objective_made = make_objective(spec, tiny_model(str(spec)))
            context = coordinator.begin({k: v.numpy() for k, v in objective_made.initial().items()}, 0)
            verbs = coordinator.closing(context, WORK)
            assert verbs[-2:] == (Apply("choose"), Evaluate("test", "assess"))
            assert [verb for verb in verbs[:-2] if getattr(verb, "report", True)] == []

    def test_default_with_privacy_is_refused_for_the_survey_of_its_grouping(self) -> None:
        with pytest.raises(ConfigError, match="survey their data for distfl, which no privacy mechanism covers"):
            make_algorithm(read_algorithm("personal+gaussian"))


class TestSimulatedGraphs:
    def test_the_native_engine_answers_by_the_memory_as_torch_does(self) -> None:
        """It computes plain answers itself; those of a device that remembers are torch's."""
        field = played("fedavg+personal+none")
        result, model = close(field, tiny_windows(0))
        assert result.private[SHARE] > 0
        objective = make_objective(read_algorithm("fedavg+personal+none"), tiny_model("fedavg"))
        held = own_tensors(field.bundle, model, result.private) | {names.X: tiny_windows(0).test_x}
        native, eager = NativeGraphs(objective, (CHANNELS, LENGTH), ["step"]), EagerGraphs(objective)
        assert native.trains("step")
        found, expected = (graphs.run("predict", held)[names.PROBABILITIES] for graphs in (native, eager))
        np.testing.assert_array_equal(found, expected)


def test_recipes_name_models_that_exist_and_general_comes_after_tuned() -> None:
    for name in KEPT_WAYS:
        objective: Any = make_objective(read_algorithm(f"{name}+none"), tiny_model("fedavg"))
        models = [candidate.model for candidate in objective.recipe.candidates]
        assert models == sorted(models, key=[TUNED, GENERAL].index)


@pytest.mark.parametrize(
    "text", ["personal:memory=7", "personal:holdout=0", "personal:holdout=1", "knn-per:memory=4097", "personal:epochs=-1"]
)
def test_an_option_out_of_its_limits_is_one_clear_error(text: str) -> None:
    key = text.split(":")[1].split("=")[0]
    with pytest.raises(ConfigError, match=f"{key} is '.*', expected a "):
        read_algorithm(text)
