"""Each partition against the rule that its paper gives: of labels, of inputs, of an embedding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.datasets.pool import pool_of
from simulation.datasets.windows import FleetData
from simulation.partitions.embedding import cluster_centres, fit_components, nearest
from simulation.partitions.inputs import three_axis_sensors, turn
from tests.simulation.partition_cases import label_counts, make_pool, partition, same_bits
from wire.bundle import Window
from wire.errors import ConfigError


class TestLabels:
    def test_iid_assigns_as_it_always_did(self, watch: FleetData) -> None:
        pool, rng = pool_of(watch), np.random.default_rng([5, 0x11D])
        train, test = (
            np.array_split(rng.permutation(len(y)), 20) for y in (pool.train_y, pool.test_y)
        )
        fleet = partition(watch, "iid", 5)
        np.testing.assert_array_equal(fleet.devices["d03"].train_x, pool.train_x[train[2]])
        np.testing.assert_array_equal(fleet.devices["d20"].test_y, pool.test_y[test[19]])
        assert set(fleet.truth.values()) == {"all"}

    @given(
        alpha=st.sampled_from([0.001, 0.1, 1.0, 100.0]),
        devices=st.integers(1, 25),
        seed=st.integers(0, 2**32),
    )
    def test_dirichlet_gives_every_device_its_least(
        self, alpha: float, devices: int, seed: int
    ) -> None:
        fleet = partition(make_pool(), f"dirichlet:alpha={alpha}:devices={devices}:split=own", seed)
        assert min(w.num_train for w in fleet.devices.values()) >= 10

    def test_dirichlet_is_more_uneven_for_a_smaller_alpha(self) -> None:
        pool = make_pool(train=5000)
        spread = [
            label_counts(partition(pool, f"dirichlet:alpha={a}", 0)).std()
            for a in (0.05, 0.5, 5, 500)
        ]
        assert spread == sorted(spread, reverse=True)

    def test_dirichlet_assigns_both_parts_by_one_rule(self) -> None:
        fleet = partition(make_pool(train=6000, test=2000), "dirichlet:split=own", 0)
        train, test = label_counts(fleet), label_counts(fleet, "test_y")
        assert np.abs(train / 3 - test).max() <= 2

    def test_dirichlet_with_too_many_devices(self) -> None:
        with pytest.raises(
            ConfigError, match="40 devices with 10 examples each need 800 training examples"
        ):
            partition(make_pool(), "dirichlet:devices=40", 0)

    @settings(max_examples=20)
    @given(classes=st.integers(1, 10), devices=st.integers(1, 20), seed=st.integers(0, 2**32))
    def test_pathological_devices_have_so_many_classes(
        self, classes: int, devices: int, seed: int
    ) -> None:
        fleet = partition(
            make_pool(train=6000),
            f"pathological:classes={classes}:devices={devices}:split=own",
            seed,
        )
        for device_id, counts in zip(fleet.devices, label_counts(fleet), strict=True):
            own = np.flatnonzero(counts)
            assert "+".join(map(str, own)) == fleet.truth[device_id]
            assert len(own) == classes

    def test_label_groups_of_ten_classes_are_autocfls(self) -> None:
        fleet = partition(make_pool(train=6000, test=2000), "label-groups", 0)
        assert [fleet.truth[d] for d in fleet.devices] == ["0-2"] * 5 + ["3-6"] * 5 + [
            "4-9"
        ] * 5 + ["0-9"] * 5
        counts = label_counts(fleet)
        assert np.flatnonzero(counts[0]).tolist() == [0, 1, 2]
        assert np.flatnonzero(counts[10]).tolist() == [4, 5, 6, 7, 8, 9]
        assert counts.sum(1).max() - counts.sum(1).min() <= 10
        test = label_counts(fleet, "test_y")
        assert ((counts > 0) == (test > 0)).all()

    def test_label_groups_of_other_data_are_halves(self, watch: FleetData) -> None:
        assert sorted(set(partition(watch, "label-groups", 0).truth.values())) == ["0-3", "4-6"]
        fleet = partition(watch, "label-groups:groups=0-1,3:devices=4", 0)
        assert list(fleet.truth.values()) == ["0-1", "0-1", "3", "3"]
        assert np.flatnonzero(label_counts(fleet)[3]).tolist() == [3]

    @pytest.mark.parametrize("groups", ["0-7", "x", "3-1", "0-2,", "-1"])
    def test_label_groups_that_are_no_ranges(self, watch: FleetData, groups: str) -> None:
        with pytest.raises(ConfigError, match="a group must be a range within 0-6"):
            partition(watch, f"label-groups:groups={groups}", 0)

    def test_category_imbalance_is_distfls_table_1(self) -> None:
        fleet = partition(make_pool(train=8000, test=10_000), "category-imbalance", 0)
        assert {w.num_train for w in fleet.devices.values()} == {40}
        assert {w.num_test for w in fleet.devices.values()} == {100}
        assert [fleet.truth[f"d{i:03d}"] for i in (1, 20, 21, 100)] == [
            "Type1",
            "Type1",
            "Type2",
            "Type5",
        ]
        assert np.flatnonzero(label_counts(fleet)[20:40].sum(0)).tolist() == [2, 3]

    def test_imbalance_cuts_nine_of_twenty(self) -> None:
        fleet = partition(make_pool(train=4000), "iid:imbalance=0.1,0.3,0.6", 0)
        sizes = sorted(w.num_train for w in fleet.devices.values())
        assert sizes == [20] * 3 + [60] * 3 + [120] * 3 + [200] * 11
        assert {w.num_test for w in fleet.devices.values()} == {10}


class TestInputs:
    def test_images_are_turned(self) -> None:
        fleet = partition(make_pool(), "rotation:devices=8", 0)
        assert list(fleet.truth.values()) == ["0", "0", "90", "90", "180", "180", "270", "270"]
        plain = partition(make_pool(), "rotation:devices=8:groups=1", 0)
        np.testing.assert_array_equal(
            fleet.devices["d03"].train_x, np.rot90(plain.devices["d03"].train_x, 1, axes=(2, 3))
        )
        np.testing.assert_array_equal(
            fleet.devices["d08"].test_x, np.rot90(plain.devices["d08"].test_x, 3, axes=(2, 3))
        )
        assert set(partition(make_pool(), "rotation:groups=2", 0).truth.values()) == {"0", "180"}

    def test_sensors_are_turned_about_z(self) -> None:
        window = Window(
            ("body_acc_x", "body_acc_y", "body_acc_z", "temperature", "Wx", "Wy", "Wz"), 5, 5
        )
        assert three_axis_sensors(window) == [0, 4]
        assert three_axis_sensors(Window(("ax", "by", "cz"), 5, 5)) == []
        x = np.arange(7, dtype=np.float32).reshape(1, 7, 1)
        assert turn(x, 1, [0, 4]).ravel().tolist() == [-1, 0, 2, 3, -5, 4, 6]
        assert turn(x, 2, [0]).ravel().tolist() == [0, -1, 2, 3, 4, 5, 6]
        np.testing.assert_array_equal(turn(turn(x, 3, [0, 4]), 1, [0, 4]), x)

    def test_data_that_cannot_be_turned(self) -> None:
        pool = make_pool(images=False)
        flat = replace(pool, window=Window(("a", "b", "c", "d"), 8, 8))
        with pytest.raises(
            ConfigError, match="needs three channels with names like ax, ay, az, got a, b, c, d"
        ):
            partition(flat, "rotation", 0)
        pool = make_pool()
        wide = replace(
            pool,
            window=Window(("grey",), 2, 2, height=8),
            train_x=pool.train_x.reshape(-1, 1, 8, 2),
        )
        with pytest.raises(ConfigError, match="images of 8 x 2 cannot be turned by 90 degrees"):
            partition(wide, "rotation", 0)

    def test_noise_grows_from_device_to_device(self) -> None:
        pool = make_pool(images=False, train=4000)
        fleet = partition(pool, "noise:devices=10:x=0.5", 0)
        plain = partition(pool, "noise:devices=10:x=0", 0)
        size = np.sqrt(np.square(pool.train_x).mean((0, 2)))[:, None]
        for k, device_id in enumerate(fleet.devices):
            added = (fleet.devices[device_id].train_x - plain.devices[device_id].train_x) / size
            assert added.var() == pytest.approx(k * 0.5 / 10, rel=0.1)
        assert not fleet.truth

    def test_noise_on_images_is_clipped(self) -> None:
        noisy = partition(make_pool(), "noise:devices=2:x=50", 0).devices["d02"].train_x
        assert (noisy.min(), noisy.max()) == (0, 1)

    @pytest.mark.parametrize("images", [True, False])
    def test_environments_change_what_is_behind_but_not_the_labels(self, images: bool) -> None:
        pool = make_pool(images=images)
        fleet = partition(pool, "environment-difference", 0)
        plain = partition(pool, "environment-difference:types=1", 0)
        assert len(set(fleet.truth.values())) == 4
        np.testing.assert_array_equal(fleet.devices["d01"].train_x, plain.devices["d01"].train_x)
        for device_id in ("d06", "d11", "d20"):
            np.testing.assert_array_equal(
                fleet.devices[device_id].train_y, plain.devices[device_id].train_y
            )
            assert (
                np.abs(fleet.devices[device_id].train_x - plain.devices[device_id].train_x).max()
                > 0.1
            )
        assert same_bits(fleet, partition(pool, "privacy-protection", 0))


class TestEmbedding:
    def test_clusters_are_found(self) -> None:
        rng = np.random.default_rng(0)
        truth = np.repeat([[0, 0], [10, 0], [0, 10]], 50, axis=0)
        at = nearest(
            truth + rng.normal(0, 0.5, truth.shape),
            cluster_centres(truth + rng.normal(0, 0.5, truth.shape), 3, rng),
        )
        assert [len(set(at[i : i + 50])) for i in (0, 50, 100)] == [1, 1, 1]
        assert len(set(at)) == 3

    def test_fewer_points_than_clusters(self) -> None:
        assert len(cluster_centres(np.array([[0.0, 0], [1, 1]]), 5, np.random.default_rng(0))) == 2
        assert len(cluster_centres(np.zeros((9, 2)), 3, np.random.default_rng(0))) == 3

    def test_components_are_those_of_a_full_decomposition(self) -> None:
        x = (
            np.random.default_rng(0).normal(size=(200, 3, 8)).astype(np.float32)
            * np.array([1, 5, 0.1], np.float32)[:, None]
        )
        x[:, 1, :4] += np.linspace(-20, 20, 200)[:, None]
        found = fit_components(x, 2)(x)
        flat = ((x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True)).reshape(200, -1)
        _, _, axes = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
        expected = (flat - flat.mean(0)) @ axes[:1].T
        np.testing.assert_allclose(np.abs(found[:, :1]), np.abs(expected), atol=1e-2)

    def test_every_device_gets_a_cluster_of_each_class_and_shuffling_undoes_it(self) -> None:
        pool = make_pool(5, train=2000)
        fleet = partition(pool, "embedding:devices=4", 0)
        assert (label_counts(fleet) > 0).all()
        project = fit_components(pool.train_x, 2)

        def spread(fleet: FleetData) -> float:
            return float(
                np.mean(
                    [
                        project(w.train_x[w.train_y == c]).var(0).sum()
                        for w in fleet.devices.values()
                        for c in range(5)
                    ]
                )
            )

        apart = [
            spread(partition(pool, f"embedding:devices=4:shuffle={s}", 0)) for s in (0, 0.5, 1)
        ]
        assert apart == sorted(apart)
        assert apart[0] < 0.5 * apart[2]

    def test_class_without_training_examples(self) -> None:
        pool = make_pool()
        keep = pool.train_y != 3
        fleet = partition(
            replace(pool, train_x=pool.train_x[keep], train_y=pool.train_y[keep]), "embedding", 0
        )
        assert sum(w.num_test for w in fleet.devices.values()) == 200
