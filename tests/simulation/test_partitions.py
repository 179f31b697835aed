"""Every partition assigns what there is, once, and the same way for the same seed; options that are
wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.datasets.pool import assign_alike
from simulation.datasets.windows import FleetData
from simulation.partition import PARTITIONS, read_partition
from tests.simulation.partition_cases import make_pool, numbers, partition, same_bits
from wire.errors import ConfigError, DataError

WHOLE = ("iid", "dirichlet", "embedding", "category-imbalance:examples=0:tests=0", "pathological")
"""Partitions that leave nobody's example behind and do not change any."""


@pytest.mark.representatives("user-*", "dirichlet-*")
class TestEveryPartition:
    @pytest.mark.parametrize("images", [True, False])
    @pytest.mark.parametrize("name", PARTITIONS)
    def test_same_seed_same_bits(self, name: str, images: bool) -> None:
        pool = make_pool(images=images)
        devices = "" if name in ("user", "real-world") else ":devices=10"
        one, two, other = (partition(pool, name + devices, seed) for seed in (3, 3, 4))
        assert same_bits(one, two)
        assert name == "user" or not same_bits(one, other)

    @pytest.mark.parametrize("images", [True, False])
    @pytest.mark.parametrize("name", PARTITIONS)
    def test_types_shapes_and_truth(self, name: str, images: bool) -> None:
        pool = make_pool(images=images, train=1200)
        fleet = partition(pool, name, 0)
        assert fleet.window == pool.window
        assert list(fleet.devices) == sorted(fleet.devices)
        assert set(fleet.truth) in (set(), set(fleet.devices))
        for windows in fleet.devices.values():
            assert windows.train_x.shape == (windows.num_train, *pool.window.shape)
            assert windows.test_x.shape == (windows.num_test, *pool.window.shape)
            assert (windows.train_x.dtype, windows.train_y.dtype) == (
                np.dtype(np.float32),
                np.dtype(np.int64),
            )
            assert windows.num_train > 0
            if images:
                assert 0 <= windows.train_x.min() <= windows.train_x.max() <= 1

    @given(
        name=st.sampled_from(WHOLE),
        num_classes=st.integers(5, 10),
        devices=st.integers(10, 25),
        split=st.sampled_from(["own", "random"]),
        seed=st.integers(0, 2**32),
    )
    def test_nothing_lost_and_nothing_duplicated(
        self, name: str, num_classes: int, devices: int, split: str, seed: int
    ) -> None:
        pool = make_pool(num_classes)
        fleet = partition(pool, f"{name}:devices={devices}:split={split}", seed)
        assert len(fleet.devices) == devices
        train, test = numbers(fleet, "train_x"), numbers(fleet, "test_x")
        assert sorted(train + test) == list(range(800))
        if split == "own":
            assert sorted(train) == list(range(600))
        y = np.concatenate([pool.train_y, pool.test_y])
        assert (
            y[train].tolist()
            == np.concatenate([w.train_y for w in fleet.devices.values()]).tolist()
        )
        assert (
            y[test].tolist() == np.concatenate([w.test_y for w in fleet.devices.values()]).tolist()
        )

    @settings(max_examples=25)
    @given(
        name=st.sampled_from(
            [
                "label-groups",
                "pathological:classes=3",
                "category-imbalance",
                "attack-injection:devices=10",
            ]
        ),
        examples=st.integers(1, 50),
        imbalance=st.sampled_from(["", "0.5", "0.1,0.3,0.6"]),
        seed=st.integers(0, 2**32),
    )
    def test_cut_down_fleets_hold_nothing_twice(
        self, name: str, examples: int, imbalance: str, seed: int
    ) -> None:
        fleet = partition(make_pool(), f"{name}:examples={examples}:imbalance={imbalance}", seed)
        train, test = numbers(fleet, "train_x"), numbers(fleet, "test_x")
        assert len(set(train)) == len(train)
        assert len(set(test)) == len(test)
        assert not set(train) & set(test)
        assert max(w.num_train for w in fleet.devices.values()) <= examples

    def test_users_are_pooled_first(self, watch: FleetData) -> None:
        fleet = partition(watch, "rotation:groups=1:devices=7", 0)
        for part in ("train_x", "test_x"):
            before, after = (
                np.concatenate([getattr(w, part) for w in f.devices.values()])
                for f in (watch, fleet)
            )
            assert sorted(x.tobytes() for x in before) == sorted(x.tobytes() for x in after)

    def test_windows_keep_their_split_in_time_and_images_are_divided_anew(
        self, watch: FleetData
    ) -> None:
        fleet = partition(watch, "dirichlet", 0)
        assert sum(w.num_test for w in fleet.devices.values()) == sum(
            w.num_test for w in watch.devices.values()
        )
        fleet = partition(make_pool(), "dirichlet:devices=5", 0)
        shares = [w.num_test / (w.num_test + w.num_train) for w in fleet.devices.values()]
        assert shares == pytest.approx([0.25] * 5, abs=0.05)


class TestUser:
    def test_default_is_the_data_themselves(self, watch: FleetData) -> None:
        assert partition(watch, "user", 0) is watch

    def test_split_random_keeps_examples_with_their_user(self, watch: FleetData) -> None:
        fleet = partition(watch, "user:split=random:test=0.3", 0)
        assert fleet.truth == watch.truth
        for device_id, windows in watch.devices.items():
            mixed = fleet.devices[device_id]
            before = {x.tobytes() for x in np.concatenate([windows.train_x, windows.test_x])}
            assert {x.tobytes() for x in np.concatenate([mixed.train_x, mixed.test_x])} == before
            assert mixed.num_test == pytest.approx(0.3 * len(before), abs=1)

    def test_devices_are_the_first_by_id(self, watch: FleetData) -> None:
        assert sorted(partition(watch, "user:devices=3", 0).devices) == [
            "p01-left",
            "p01-right",
            "p02-left",
        ]
        with pytest.raises(
            DataError, match="devices must be between 1 and 20, the devices of data watch, got 21"
        ):
            partition(watch, "user:devices=21", 0)

    def test_pool_is_assigned_alike(self) -> None:
        pool = make_pool()
        fleet = partition(pool, "user", 0)
        assert same_bits(fleet, assign_alike(pool))
        assert [w.num_train for w in fleet.devices.values()] == [30] * 20
        with pytest.raises(DataError, match="has only 10 training examples for 20 devices"):
            assign_alike(replace(pool, train_x=pool.train_x[:10], train_y=pool.train_y[:10]))


class TestOptions:
    def test_defaults_and_values(self) -> None:
        choice = read_partition("dirichlet:alpha=0.5:devices=7")
        options = choice.options
        assert choice.name == "dirichlet"
        assert (options["alpha"], options["devices"], options["least"], options["split"]) == (
            0.5,
            7,
            10,
            "auto",
        )
        assert read_partition("iid:").options == read_partition("iid").options

    def test_every_partition_and_option_says_what_it_is(self) -> None:
        for name, entry in PARTITIONS.items():
            assert re.fullmatch(r"[a-z-]+", name)
            assert len(entry.about) > 20
            assert "\n" not in entry.about
            assert all(len(option.about) > 10 for option in entry.options.values())

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("x", "No partition 'x'. Known partitions: user, iid, dirichlet"),
            ("iid:foo=1", "'foo' is not an option of iid; it has devices=0, examples=0"),
            ("iid:devices", "'devices' is not of the form key=value"),
            ("iid:devices=x", "devices must be a whole number from 0.*, got 'x'"),
            ("iid:devices=2.5", "devices must be a whole number.*, got '2.5'"),
            ("dirichlet:alpha=0", "alpha must be a number from 0.001.*, got '0'"),
            ("dirichlet:alpha=nan", "alpha must be a number.*, got 'nan'"),
            ("embedding:shuffle=1.5", "shuffle must be a number from 0 to 1.*, got '1.5'"),
            ("user:split=own", "split must be time or random, got 'own'"),
            ("iid:devices=3:devices=4", "devices is given twice"),
            (
                "iid:imbalance=0.5,2",
                "imbalance must be shares above 0 and up to 1, .*, got '0.5,2'",
            ),
            ("iid:imbalance=a", "imbalance must be shares .*, got 'a'"),
            (
                "iid:devices=601",
                "devices must be at most 600, the training examples of data synthetic, got 601",
            ),
            ("rotation:devices=3", "devices must be at least 4, one for each group, got 3"),
            (
                "pathological:classes=11",
                "classes must be at most 10, the classes of data synthetic, got 11",
            ),
            (
                "category-imbalance:types=11",
                "types must be at most 10, the classes of data synthetic, got 11",
            ),
        ],
    )
    def test_what_is_wrong_is_one_clear_error(self, text: str, error: str) -> None:
        with pytest.raises(ConfigError, match=error):
            partition(make_pool(), text, 0)
