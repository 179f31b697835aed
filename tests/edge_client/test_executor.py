"""The executor: batches, every verb of a plan, and what does not fit the bundle."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from edge_client.core.batches import batch_slices, training_batches
from edge_client.core.ports import Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor, PlanResult
from simulation.datasets.windows import FleetData
from tests.android.kotlin_vectors import MANIFEST, FakeGraphs
from tests.edge_client.hostile import packed
from tests.support.bundles import Exported
from tests.support.plans import plan
from wire import messages as m
from wire.arrays.tensors import Array, Tensors, TensorSpec
from wire.bundle import Window, pack, unpack
from wire.errors import BundleError, DataError, Malformed, WrongLayout
from wire.held import RUN, held_out, num_held_out


def on_fake_graphs(
    verb: m.Verb, window: Window = MANIFEST.window, x: Array | None = None, **changes: Any
) -> PlanResult:
    """Run one verb on a device without training windows, with `x` for the blob of a `respond`, as
    in Kotlin's tests."""
    initial = {s.key: np.zeros(s.shape, np.float32) for s in MANIFEST.tensors}
    manifest = structs.replace(MANIFEST, window=window, **changes)
    bundle = unpack(
        pack(
            manifest,
            {f"{name}.onnx": b"" for name in MANIFEST.graphs},
            {k: v for k, v in initial.items() if "received/" not in k},
        )
    )
    x0, y0 = np.zeros((0, *window.shape), window.dtype), np.zeros(0, np.int64)
    model = {spec.key: initial[spec.key] for spec in MANIFEST.received()}
    asked = m.Plan("run", 5, 1, 0, "phone", "0" * 64, "0" * 64, (verb,), 7, 1e9)
    return Executor(bundle, FakeGraphs(), Windows(x0, y0, x0, y0)).execute(
        asked, model, {}, lambda _: {} if x is None else {"x": x}
    )


class TestBatches:
    @given(n=st.integers(1, 200), size=st.integers(2, 64))
    def test_every_example_is_in_one_batch_and_none_is_too_small(self, n: int, size: int) -> None:
        slices = batch_slices(n, size, 2)
        assert [i for part in slices for i in range(n)[part]] == list(range(n))
        assert all(2 <= part.stop - part.start <= size + 1 for part in slices) or n == 1
        if n >= size > 2:
            assert all(size // 2 <= part.stop - part.start <= size for part in slices)
        assert [part.stop - part.start for part in slices[:-2]] == [size] * (len(slices) - 2)

    @pytest.mark.parametrize(
        ("n", "sizes"),
        [
            (35, [18, 17]),
            (47, [24, 23]),
            (48, [32, 16]),
            (64, [32, 32]),
            (67, [32, 18, 17]),
            (33, [17, 16]),
            (31, [31]),
        ],
    )
    def test_a_small_rest_shares_with_the_batch_before_it(self, n: int, sizes: list[int]) -> None:
        assert [part.stop - part.start for part in batch_slices(n, 32, 2)] == sizes

    def test_steps_and_epochs(self) -> None:
        rng = np.random.default_rng(0)
        assert len(list(training_batches(m.Train(8, epochs=3), np.arange(20), 0, 2, rng))) == 9
        assert len(list(training_batches(m.Train(8, steps=7), np.arange(20), 0, 2, rng))) == 7

    @given(
        n=st.integers(2, 100),
        more=st.integers(0, 500),
        size=st.integers(2, 64),
        epochs=st.integers(1, 4),
        passes=st.integers(1, 20),
        seed=st.integers(0, 9),
    )
    def test_an_epoch_is_as_long_as_a_pass_over_all_windows_within_bounds(
        self, n: int, more: int, size: int, epochs: int, passes: int, seed: int
    ) -> None:
        train = m.Train(size, epochs, most_passes=passes)
        made = [
            batch.tolist()
            for batch in training_batches(train, np.arange(n), more, 2, np.random.default_rng(seed))
        ]
        a_pass, whole = len(batch_slices(n, size, 2)), len(batch_slices(n + more, size, 2))
        assert len(made) == epochs * min(whole, passes * a_pass)
        for i in range(0, len(made) - a_pass + 1, a_pass):
            assert sorted(place for batch in made[i : i + a_pass] for place in batch) == list(
                range(n)
            )
        if not more or passes == 1:
            plain = training_batches(
                m.Train(size, epochs), np.arange(n), 0, 2, np.random.default_rng(seed)
            )
            assert made == [batch.tolist() for batch in plain]


class TestHeldOut:
    @given(y=st.lists(st.integers(0, 6), max_size=600), share=st.floats(0, 1, exclude_max=True))
    def test_a_share_is_at_least_three_windows_or_none_and_each_class_gives_its_part(
        self, y: list[int], share: float
    ) -> None:
        labels, n = np.array(y, np.int64), len(y)
        mask = held_out(labels, share)
        assert mask.shape == (n,)
        assert mask.dtype == np.bool_
        assert np.array_equal(mask, held_out(labels, share))
        assert mask.sum() == num_held_out(n, share)
        assert mask.sum() == (whole if (whole := math.floor(n * share)) >= 3 else 0)
        classes, sizes = np.unique(labels, return_counts=True)
        given = np.array([mask[labels == c].sum() for c in classes])
        if mask.sum() <= n - len(classes):
            assert (given < sizes).all(), "a class keeps a window to train on"
            spare = sizes - 1
            assert (np.abs(given - mask.sum() * spare / max(1, spare.sum())) < 1).all()

    @pytest.mark.parametrize("classes", [4, 11, 12, 13, 18, 24])
    @pytest.mark.parametrize("windows", [2, 3, 5, 8, 40])
    @pytest.mark.parametrize("stretch", [1, 5, 8, 40])
    def test_no_class_is_in_step_with_what_is_held_out(
        self, classes: int, windows: int, stretch: int
    ) -> None:
        y = np.arange(classes * windows) // min(stretch, windows) % classes
        mask = held_out(y, 0.25)
        assert all((~mask)[y == c].sum() > 0 for c in range(classes))
        if windows >= 5:
            assert all(mask[y == c].any() for c in range(classes))

    @given(n=st.integers(1, 3000), share=st.floats(0.01, 0.6))
    def test_runs_are_short_and_evenly_spread(self, n: int, share: float) -> None:
        mask = held_out(np.zeros(n, np.int64), share)
        assume(mask.any())
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(int)))
        begins, ends = edges[::2], edges[1::2]
        if share <= 0.4:  # else runs may meet
            assert set(ends - begins) <= {
                (k := int(mask.sum())) // len(begins),
                -(-k // len(begins)),
            }
            assert (ends - begins).max() <= min(RUN, max(1, n // 12)) or n < 10
        between = np.concatenate([begins, [n]]) - np.concatenate([[0], ends])
        assert abs(int(between[0]) - int(between[-1])) <= 1
        assert (np.abs(between[1:-1] - 2 * between[0]) <= 2).all()


class TestExecutor:
    def test_train_evaluate_respond_annotate(self, fleet: FleetData, exported: Exported) -> None:
        bundle, windows = exported.bundle, fleet.devices["d0"]
        executor = Executor(bundle, OnnxGraphs(bundle), windows)
        model = {k: v for k, v in bundle.initial.items() if not k.startswith("slot/")}
        inputs = {"x": windows.test_x[:5]}
        verbs = (
            m.Evaluate(),
            m.Evaluate("train", "survey", "initial"),
            m.Respond("2" * 64),
            m.Annotate("predict", "weight"),
            m.Train(16, 2),
        )
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _name: inputs)
        assert result.evaluated.num_examples == windows.num_test
        assert result.trained.num_examples == 2 * windows.num_train
        assert result.num_steps == 6
        assert result.tensors["response/predict"].shape == (5, 3)
        np.testing.assert_allclose(result.tensors["response/predict"].sum(1), 1, rtol=1e-5)
        assert result.tensors["response/survey.gradient"].shape == model["shared/head.weight"].shape
        layout = {name for name, _, _ in bundle.manifest.reported("step")}
        assert layout <= result.tensors.keys()
        assert np.abs(result.tensors["delta/head.weight"]).max() > 0

    def test_private_tensors_of_another_layout_are_as_if_they_were_not_there(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        specs = (*exported.bundle.manifest.tensors, TensorSpec("own", "private", "float32", (3,)))
        bundle = unpack(packed(exported.bundle, tensors=specs))
        executor = Executor(bundle, OnnxGraphs(bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}

        def left(own: Array) -> Tensors:
            stored = {
                "private/own": own,
                "private/unknown": own,
                "column/weight": np.array(1, np.float32),
            }
            return executor.execute(
                plan(verbs=(m.Train(16), m.Evaluate())), model, stored, lambda _n: {}
            ).private

        assert {key: value.tolist() for key, value in left(np.ones(3, np.float32)).items()} == {
            "private/own": [1, 1, 1]
        }
        for wrong in (
            np.ones(4, np.float32),
            np.ones((1, 3), np.float32),
            np.ones(3, np.int64),
            np.array(1, np.float32),
        ):
            assert {key: value.tolist() for key, value in left(wrong).items()} == {
                "private/own": [0, 0, 0]
            }

    def test_annotated_columns_stay_on_the_device(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        result = executor.execute(
            plan(verbs=(m.Annotate("predict", "weight"),)), model, {}, lambda _n: {}
        )
        assert list(result.private) == ["column/weight"]
        assert len(result.private["column/weight"]) == fleet.devices["d0"].num_train
        again = executor.execute(plan(verbs=(m.Evaluate(),)), model, result.private, lambda _n: {})
        np.testing.assert_array_equal(
            again.private["column/weight"], result.private["column/weight"]
        )

    def test_choose_goes_on_from_the_model_that_fits_best(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        trained = executor.execute(
            plan(verbs=(m.Train(16, 5, hyper={"lr": 0.05}),)), model, {}, lambda _n: {}
        )
        better = {
            k: v + trained.tensors.get(k.replace("shared/", "delta/"), np.float32(0))
            for k, v in model.items()
        }
        blobs = {"1" * 64: model, "2" * 64: better}
        result = executor.execute(
            plan(verbs=(m.Choose(("1" * 64, "2" * 64)), m.Train(16))), model, {}, blobs.__getitem__
        )
        assert result.model == "2" * 64
        expected = executor.execute(plan(verbs=(m.Train(16),)), better, {}, lambda _n: {})
        np.testing.assert_array_equal(
            result.tensors["delta/head.weight"], expected.tensors["delta/head.weight"]
        )

    def test_protect_clips_and_noises_everything_that_training_changed(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        secret = lambda _plan: np.random.default_rng(7)  # noqa: E731
        executor = Executor(
            exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"], secret
        )
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}

        def change(*verbs: m.Verb) -> np.ndarray:
            sent = executor.execute(
                plan(verbs=(m.Train(16), *verbs)), model, {}, lambda _n: {}
            ).tensors
            parts = [
                sent[f"delta/{k[7:]}"] if k.startswith("shared/") else sent[k] - v
                for k, v in model.items()
            ]
            return np.concatenate([part.ravel() for part in parts])

        free, clipped, noised = change(), change(m.Protect(0.1)), change(m.Protect(0.1, 0.01))
        assert np.linalg.norm(free) > 0.2
        assert np.linalg.norm(clipped) == pytest.approx(0.1, rel=1e-3)
        np.testing.assert_allclose(clipped, free * 0.1 / np.linalg.norm(free), atol=1e-6)
        assert np.std(noised - clipped) == pytest.approx(0.01, rel=0.1)

    def test_a_change_that_is_not_finite_is_not_protected_but_an_error(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        verbs = (m.Train(16, hyper={"lr": 1e38}, steps=3), m.Protect(0.1))
        with pytest.raises(DataError, match="not finite"), np.errstate(all="ignore"):
            executor.execute(plan(verbs=verbs), model, {}, lambda _n: {})

    def test_what_is_held_out_is_not_trained_on_and_is_the_same_each_time(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        num_train = fleet.devices["d0"].num_train
        mask = held_out(fleet.devices["d0"].train_y, 0.25)
        assert mask.sum() == num_train // 4
        verbs = (m.Train(16, holdout=0.25), m.Evaluate("holdout", holdout=0.25))
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _n: {})
        assert (result.trained.num_examples, result.evaluated.num_examples) == (
            (~mask).sum(),
            mask.sum(),
        )

    def test_a_training_with_fewer_windows_than_it_asks_for_is_left_out(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        windows = fleet.devices["d0"]
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        few = Windows(windows.train_x[:12], windows.train_y[:12], windows.test_x, windows.test_y)
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), few)
        done, left_out = (
            executor.execute(
                plan(verbs=(m.Train(8, least=n, holdout=0.25),)), model, {}, lambda _n: {}
            )
            for n in (9, 10)
        )
        assert (done.num_steps, left_out.num_steps) == (2, 0)
        assert left_out.tensors == {}
        none = Executor(
            exported.bundle,
            OnnxGraphs(exported.bundle),
            Windows(few.train_x[:0], few.train_y[:0], few.test_x, few.test_y),
        )
        assert (
            none.execute(plan(verbs=(m.Train(8, least=2),)), model, {}, lambda _n: {}).num_steps
            == 0
        )
        with pytest.raises(DataError, match="Training needs at least 2 windows, got 0"):
            none.execute(plan(verbs=(m.Train(8),)), model, {}, lambda _n: {})

    def test_what_a_graph_measures_over_no_windows_is_zero_for_later_graphs_and_not_sent(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        windows = fleet.devices["d0"]
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        none = Windows(windows.train_x[:0], windows.train_y[:0], windows.test_x, windows.test_y)
        seen: list[dict[str, np.ndarray]] = []

        class Watched(OnnxGraphs):
            def run(self, graph: str, inputs: Tensors) -> Tensors:
                seen.append({k: v for k, v in inputs.items() if k.startswith("response/")})
                return super().run(
                    graph, {k: v for k, v in inputs.items() if not k.startswith("response/")}
                )

        executor = Executor(exported.bundle, Watched(exported.bundle), none)
        result = executor.execute(
            plan(verbs=(m.Evaluate("train", "survey"), m.Evaluate())), model, {}, lambda _n: {}
        )
        assert result.tensors == {}
        expected = {key: shape for key, _, shape in exported.bundle.manifest.responses("survey")}
        assert {key: value.shape for key, value in seen[0].items()} == expected != {}
        assert not any(value.any() for value in seen[0].values())

    def test_a_model_tuned_for_the_device_alone_is_kept_and_not_sent(
        self, fleet: FleetData, exported: Exported
    ) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        verbs = (m.Train(16, 8, hyper={"lr": 0.05}, report=False), m.Evaluate())
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _n: {})
        assert result.tensors == {}
        windows = fleet.devices["d0"]
        predicted = executor.predict(model, result.private, windows.test_x).argmax(1)
        assert (predicted == windows.test_y).sum() == result.evaluated.num_correct
        untuned = executor.predict(model, {}, windows.test_x).argmax(1)
        assert (untuned == windows.test_y).sum() < result.evaluated.num_correct
        after = executor.execute(plan(verbs=(m.Evaluate(),)), model, result.private, lambda _n: {})
        assert after.evaluated.num_correct == (untuned == windows.test_y).sum()

    def test_one_example_can_be_predicted(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        assert executor.predict(
            exported.bundle.initial, {}, fleet.devices["d0"].test_x[:1]
        ).shape == (1, 3)

    def test_model_of_another_layout_is_refused(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        with pytest.raises(WrongLayout, match="is missing"):
            executor.execute(plan(), {}, {}, lambda _n: {})

    def test_windows_that_do_not_fit_the_bundle_are_refused(self, exported: Exported) -> None:
        x, y = np.zeros((4, 3, 32), np.float32), np.zeros(4, np.int64)
        with pytest.raises(DataError, match=r"must have shape \(2, 32\) for bundle"):
            Executor(exported.bundle, OnnxGraphs(exported.bundle), Windows(x, y, x, y))
        x, y = np.zeros((4, 2, 32), np.float32), np.full(4, 7)
        with pytest.raises(DataError, match=r"train labels must be from 0 to 2, .* got 7 to 7"):
            Executor(exported.bundle, OnnxGraphs(exported.bundle), Windows(x, y, x, y))

    def test_a_device_without_training_windows_makes_an_empty_column(self) -> None:
        column = on_fake_graphs(m.Annotate("weigh", "weight")).private["column/weight"]
        assert (column.shape, column.dtype) == ((0,), np.dtype(np.float32))
        with pytest.raises(Malformed, match="must not have the name 'x'"):
            on_fake_graphs(m.Annotate("weigh", "x"))

    def test_inputs_of_respond_are_of_the_type_that_the_window_of_the_bundle_has(self) -> None:
        ids, numbers = (np.zeros((3, 2, 4), kind) for kind in (np.int64, np.float32))
        of_ids = Window(("u", "v"), 4, 4, vocabulary=9)
        verb = m.Respond("0" * 64)
        assert on_fake_graphs(verb, of_ids, ids).tensors["response/predict"].shape == (3, 3)
        assert on_fake_graphs(verb, x=numbers).tensors["response/predict"].shape == (3, 3)
        for window, x in (
            (of_ids, numbers),
            (MANIFEST.window, ids),
            (of_ids, ids[:, :1]),
            (of_ids, ids[:0]),
            (of_ids, None),
        ):
            with pytest.raises(Malformed, match="inputs of verb respond"):
                on_fake_graphs(verb, window, x)
        with pytest.raises(DataError, match="must hold ids from 0 to 8"):
            on_fake_graphs(verb, of_ids, ids + 9)

    def test_nothing_leaves_that_the_bundle_does_not_call_a_response(self) -> None:
        graph = structs.replace(MANIFEST.graphs["double"], responses=())
        assert on_fake_graphs(m.Apply("double")).tensors.keys() == {"response/double.norm"}
        assert (
            on_fake_graphs(m.Apply("double"), graphs={**MANIFEST.graphs, "double": graph}).tensors
            == {}
        )

    @pytest.mark.parametrize("task", ["classification", "reconstruction"])
    def test_windows_without_labels_of_another_length_are_refused(
        self, exported: Exported, task: str
    ) -> None:
        x, y = np.zeros((4, 2, 32), np.float32), np.zeros(4, np.int64)
        bundle = replace(
            exported.bundle, manifest=structs.replace(exported.bundle.manifest, task=task)
        )
        with pytest.raises(
            DataError,
            match=r"windows without labels must have shape \(2, 32\) for bundle .*, got \(2, 40\)",
        ):
            Executor(
                bundle, OnnxGraphs(bundle), Windows(x, y, x, y, np.zeros((3, 2, 40), np.float32))
            )

    def test_unknown_graph_is_one_clear_error(self, exported: Exported) -> None:
        with pytest.raises(BundleError, match="no graph 'other'"):
            OnnxGraphs(exported.bundle).run("other", {})
