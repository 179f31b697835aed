"""`shoal.load` of what lies in memory: tables of any library, recordings, several inputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import shoal

pd = pytest.importorskip(
    "pandas", reason="pandas is not installed: pip install 'shoal[pandas]' would run this"
)

ACTIVITIES = ("jog", "sit", "walk")
HZ = 50


def samples(people: int = 3, seconds: int = 24) -> dict[str, Any]:
    """Columns of recordings one after another: person, time, two channels, activity."""
    rng = np.random.default_rng(0)
    parts = []
    for person in range(people):
        for number, activity in enumerate(ACTIVITIES):
            t = np.arange(seconds * HZ) / HZ + 1000 * number
            turn = 2 * np.pi * (1 + number) * t
            x = np.sin(turn + rng.uniform(0, 6)) + 0.05 * rng.standard_normal(len(t))
            y = np.cos(turn + rng.uniform(0, 6)) + 0.05 * rng.standard_normal(len(t))
            parts.append(
                {
                    "who": np.full(len(t), f"p{person}"),
                    "seconds": t,
                    "ax": x,
                    "ay": y,
                    "activity": np.full(len(t), activity),
                }
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Frame:
    """A table of some library: names of columns, and a column by its name."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def arrow(columns: dict[str, Any]) -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow would run this")
    return pyarrow.table(columns)


def polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars", reason="pip install polars would run this").DataFrame(
        columns
    )


def hugging_face(columns: dict[str, Any]) -> Any:
    datasets = pytest.importorskip("datasets", reason="pip install datasets would run this")
    return datasets.Dataset(arrow(columns), fingerprint="samples")


def fields(columns: dict[str, Any]) -> Any:
    """An array with named fields, as `numpy.genfromtxt` returns it."""
    kinds = [(name, np.asarray(column).dtype) for name, column in columns.items()]
    table = np.zeros(len(columns["who"]), kinds)
    for name, column in columns.items():
        table[name] = column
    return table


TABLES: list[Callable[[dict[str, Any]], Any]] = [
    *(pd.DataFrame, polars, arrow, hugging_face, dict, Frame, fields)
]
NAMED: dict[str, Any] = {"person": "who", "label": "activity", "time": "seconds"}


def same(one: shoal.FleetData, other: shoal.FleetData) -> None:
    """Both have the same windows, classes and channels."""
    assert (one.window, one.classes) == (other.window, other.classes)
    assert list(one.devices) == list(other.devices)
    for device_id, windows in one.devices.items():
        for part in ("train_x", "train_y", "test_x", "test_y", "unlabelled_x"):
            np.testing.assert_array_equal(
                getattr(windows, part), getattr(other.devices[device_id], part)
            )


class TestTables:
    @pytest.mark.parametrize("made", TABLES)
    def test_a_table_of_any_library_is_read_alike(self, made: Callable[..., Any]) -> None:
        data = shoal.load(made(samples()), **NAMED)
        same(data, shoal.load(pd.DataFrame(samples()), **NAMED))
        assert data.window.channels == ("ax", "ay")
        assert data.classes == ACTIVITIES
        assert list(data.devices) == ["p0", "p1", "p2"]

    def test_it_is_what_a_folder_of_the_same_recordings_is(self, tmp_path: Path) -> None:
        columns = samples(2)
        table = pd.DataFrame(columns).rename(columns={"seconds": "t", "activity": "label"})
        for person, rows in table.groupby("who"):
            for activity, part in rows.groupby("label"):
                folder = tmp_path / str(person)
                folder.mkdir(exist_ok=True)
                (folder / "classes.txt").write_text("\n".join(ACTIVITIES))
                part.drop(columns="who").to_csv(folder / f"{activity}.csv", index=False)
        read = shoal.load(tmp_path)
        held = shoal.load(pd.DataFrame(columns), **NAMED)
        for device_id, windows in held.devices.items():
            np.testing.assert_allclose(
                windows.train_x, read.devices[device_id].train_x, rtol=1e-6, atol=1e-7
            )
            np.testing.assert_array_equal(windows.test_y, read.devices[device_id].test_y)

    def test_rows_of_people_may_be_mixed(self) -> None:
        """Rows of several people in turn, as of a server that listens to several phones."""
        table = pd.DataFrame(samples())
        mixed = table.assign(row=np.arange(len(table)) % 3600).sort_values("row", kind="stable")
        same(shoal.load(mixed.drop(columns="row"), **NAMED), shoal.load(table, **NAMED))

    def test_it_trains(self) -> None:
        data = shoal.load(pd.DataFrame(samples()), **NAMED)
        result = shoal.simulate(data, algorithm="fedavg", rounds=10, local_epochs=10, lr=0.05)
        assert result.accuracy.mean is not None
        assert result.accuracy.mean > 0.9

    def test_no_window_spans_a_gap_or_two_recordings(self) -> None:
        """A phone that sleeps 5 s after every 2 s has no window of 128 samples at 50 Hz."""
        n = 3000
        values = np.random.default_rng(0).random(n)
        t = np.arange(n) / HZ + 5 * (np.arange(n) // 100)
        table = pd.DataFrame({"t": t, "ax": values, "who": "a"})
        data = shoal.load(table, person="who")
        asleep = data.devices["a"]
        assert (asleep.num_train, asleep.num_test, asleep.num_unlabelled) == (0, 0, 0)
        assert data.reading is not None
        assert data.reading.remarks[-1].endswith("without a gap has 100. Load with length=100")
        table["t"] = np.arange(n) / HZ + 5 * (np.arange(n) // 400)
        table.loc[2000:, "t"] -= 100  # a second recording, whose time begins anew
        x = shoal.load(table, person="who", length=64, stride=16).devices["a"].unlabelled_x
        begins = np.searchsorted(np.sort(values.astype(np.float32)), x[:, 0, 0])
        places = np.argsort(values)[begins] % 400
        assert len(x) > 60
        assert places.max() + 64 <= 400

    @pytest.mark.parametrize("kind", ["datetime", "zone", "index", "text", "delta", "levels"])
    def test_time_is_read_in_the_forms_that_pandas_has(self, kind: str) -> None:
        columns = samples()
        table = pd.DataFrame(columns)
        named = dict(NAMED)
        moment = pd.Timestamp("2026-03-01") + pd.to_timedelta(table["seconds"], unit="s")
        if kind == "delta":
            table["seconds"] = pd.to_timedelta(table["seconds"], unit="s")
        elif kind == "text":
            table["seconds"] = moment.dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        elif kind == "zone":
            table["seconds"] = moment.dt.tz_localize("Europe/Berlin")
        else:
            table["seconds"] = moment
        if kind == "index":
            table = table.set_index("seconds").rename_axis(None)
            del named["time"]
        if kind == "levels":
            table = table.set_index(["who", "seconds"])
        same(shoal.load(table, **named), shoal.load(pd.DataFrame(columns), **NAMED))

    @pytest.mark.parametrize("kind", ["category", "numbers", "floats", "nullable", "bool"])
    def test_labels_are_classes_in_any_form(self, kind: str) -> None:
        table = pd.DataFrame(samples())
        numbers = table["activity"].map({"sit": 1, "walk": 2, "jog": 3})
        if kind == "category":
            table["activity"] = table["activity"].astype("category")
        if kind == "numbers":
            table["activity"] = numbers
        if kind == "floats":
            table["activity"] = numbers.astype(float).where(numbers != 3)
        if kind == "nullable":
            table["activity"] = numbers.astype("Int64").where(numbers != 3)
        if kind == "bool":
            table["activity"] = numbers == 1
        data = shoal.load(table, **NAMED)
        classes = {"category": ACTIVITIES, "numbers": ("1", "2", "3"), "bool": ("False", "True")}
        assert data.classes == classes.get(kind, ("1", "2"))
        unlabelled = sum(w.num_unlabelled for w in data.devices.values())
        assert bool(unlabelled) == (kind in ("floats", "nullable"))

    def test_persons_may_be_numbers(self) -> None:
        table = pd.DataFrame(samples())
        table["who"] = table["who"].map({"p0": 7.0, "p1": 12.0, "p2": 3.0})
        assert list(shoal.load(table, **NAMED).devices) == ["s03", "s07", "s12"]

    def test_channels_may_be_listed(self) -> None:
        table = pd.DataFrame(samples()).assign(note="by hand", index=1.0)
        assert shoal.load(table, channels=["ay"], **NAMED).window.channels == ("ay",)

    def test_a_table_for_each_device_or_recording(self) -> None:
        table = pd.DataFrame(samples())
        parts = {p: rows.drop(columns="who") for p, rows in table.groupby("who")}
        several = {p: [r for _, r in rows.groupby("activity")] for p, rows in parts.items()}
        whole = shoal.load(table, **NAMED)
        same(shoal.load(parts, label="activity", time="seconds"), whole)
        same(shoal.load(several, label="activity", time="seconds"), whole)

    def test_columns_of_names_and_quantities_are_labels(self) -> None:
        table = pd.DataFrame(samples())
        hot = pd.get_dummies(table.pop("activity"), prefix="label", prefix_sep=".")
        data = shoal.load(table.join(hot), person="who", time="seconds")
        assert data.classes == ACTIVITIES
        assert data.devices["p0"].train_y.sum(1).tolist() == [1] * data.devices["p0"].num_train
        speed = table.assign(**{"target.speed": 0.25}).drop(columns="seconds")
        targets = shoal.load(speed, person="who").devices["p0"].train_y
        assert targets.dtype == np.float32
        assert np.unique(targets).tolist() == [0.25]

    @pytest.mark.parametrize(
        ("change", "named", "said"),
        [
            (dict, {"label": "activity"}, "person='NAME' must name the column of the person"),
            (dict, {"person": "whom"}, "no column 'whom'"),
            (dict, NAMED | {"label": "activty"}, r"no column 'activty' \(label\)"),
            (dict, NAMED | {"channels": ["az"]}, r"no column 'az' \(channel\)"),
            (
                lambda c: c | {"ax": np.where(c["ax"] > 0.9, "high", c["ax"].astype(str))},
                NAMED,
                "column ax: 'high' is not a number. Mend the cell, or leave the column out",
            ),
            (
                lambda c: c | {"ay": np.where(np.arange(len(c["who"])) == 7, "high", "1")},
                NAMED | {"channels": ["ax", "ay"]},
                "row 7, column ay: 'high' is not a number, and the column is a channel",
            ),
            (
                lambda c: c | {"activity": np.linspace(0, 1, len(c["who"]))},
                NAMED,
                r"a label must be a whole number or a name, got .* call its column target\.NAME",
            ),
            (
                lambda c: {name: column[::-1] for name, column in c.items()},
                NAMED,
                "column 'seconds' has the name of a time, and its values fall in 100% of the rows",
            ),
            (
                lambda c: c | {"ax": np.where(np.arange(len(c["who"])) == 5, 1e39, c["ax"])},
                NAMED,
                "row 5, column ax must hold finite values, got 1e\\+39",
            ),
            (
                lambda c: c | {"who": np.where(np.arange(len(c["who"])) == 9, "", c["who"])},
                NAMED,
                "column 'who' must name a person in each row, got no value in row 9",
            ),
            (dict, NAMED | {"classes": ["sit", "walk"]}, "no class 'jog'"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, change: Callable[..., Any], named: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(shoal.DataError, match=said):
            shoal.load(pd.DataFrame(change(samples())), **named)

    def test_what_is_left_out_is_said(self) -> None:
        table = pd.DataFrame(samples())
        n = len(table)
        more = {"note": "by hand", "label": "x", "row": np.arange(n), "code": table["activity"]}
        more["code"] = more["code"].map({"sit": 4, "walk": 7, "jog": 9})
        data = shoal.load(table.assign(**more), **NAMED)
        assert (data.window.channels, data.classes) == (("ax", "ay"), ACTIVITIES)
        assert data.reading is not None
        roles = {column.name: column.role for column in data.reading.columns}
        assert [roles[name] for name in more] == ["left out"] * 4
        assert data.window.rate_hz == HZ

    def test_a_name_twice_and_tables_that_differ_are_refused(self) -> None:
        table = pd.DataFrame(samples())
        with pytest.raises(shoal.DataError, match="has column 'ax' twice"):
            shoal.load(pd.concat([table, table[["ax"]]], axis=1), **NAMED)
        with pytest.raises(
            shoal.DataError, match="the same channels, got ax, ay for device a and ax"
        ):
            shoal.load({"a": table[["ax", "ay"]], "b": table[["ax"]]})


def windows(n: int = 60, length: int = 32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    y = np.arange(n) % 2
    x = rng.standard_normal((n, 3, length)).astype(np.float32) * (1 + 2 * y[:, None, None])
    return x, y, np.array(["a", "b", "c"])[np.arange(n) * 3 // n]


class TestTablesOfWindows:
    """A row is a window where the cells are arrays."""

    def test_one_column_of_windows(self) -> None:
        x, y, owner = windows()
        table = pd.DataFrame({"x": list(x), "y": y, "who": owner, "file": "a.bin"})
        same(shoal.load(table, person="who", label="y"), shoal.load(x, y, owner))

    def test_a_column_for_each_channel(self) -> None:
        x, y, owner = windows()
        table = pd.DataFrame({name: list(x[:, i]) for i, name in enumerate("abc")})
        data = shoal.load(table.assign(y=y, who=owner), person="who", label="y")
        same(data, shoal.load(x, y, owner, channels=["a", "b", "c"]))

    def test_hugging_face_has_names_of_classes_and_parts(self) -> None:
        datasets = pytest.importorskip("datasets", reason="pip install datasets would run this")
        x, y, owner = windows()
        kinds = datasets.Features(
            {
                "x": datasets.Array2D(x.shape[1:], "float32"),
                "y": datasets.ClassLabel(names=["sit", "walk"]),
                "who": datasets.Value("string"),
            }
        )
        encoded = kinds.encode_batch({"x": list(x), "y": y.tolist(), "who": owner.tolist()})
        pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow would run this")
        writer = pytest.importorskip("datasets.arrow_writer")
        columns = {
            name: pyarrow.array(writer.OptimizedTypedSequence(encoded[name], type=kinds[name]))
            for name in kinds
        }
        table = pyarrow.table(columns).cast(kinds.arrow_schema)
        whole = datasets.Dataset(table, fingerprint="windows")
        named: dict[str, Any] = {"person": "who", "label": "y"}
        same(shoal.load(whole, **named), shoal.load(x, y, owner, classes=["sit", "walk"]))
        parts = datasets.DatasetDict({"train": whole, "test": whole})
        assert shoal.load(parts, **named).devices["a"].num_test == 20

    def test_parts_are_no_devices(self) -> None:
        x, y, owner = windows()
        table = pd.DataFrame({"x": list(x), "y": y, "who": owner})
        data = shoal.load({"train": table, "test": table[:30]}, person="who", label="y")
        assert [w.num_test for w in data.devices.values()] == [
            20,
            10,
            4,
        ]  # c has no test part: the last quarter of each class
        with pytest.raises(shoal.DataError, match="parts must be train and test"):
            shoal.load({"train": table, "validation": table}, person="who", label="y")

    def test_the_arrays_of_a_file_as_a_mapping(self, tmp_path: Path) -> None:
        x, y, owner = windows()
        np.savez(tmp_path / "own.npz", X=x, y=y, subject=owner)
        with np.load(tmp_path / "own.npz") as file:
            same(shoal.load(file), shoal.load(x, y, owner))
        same(
            shoal.load({"X": x, "y": list(map(str, y)), "who": owner}, person="who"),
            shoal.load(x, np.array(["0", "1"])[y], owner),
        )


class TestRecordings:
    """Recordings of unequal length, in lists."""

    LENGTHS = (300, 1000, 129, 640, 128, 50)

    def test_a_label_for_each(self) -> None:
        rng = np.random.default_rng(0)
        x = [rng.random((2, n)) for n in self.LENGTHS]
        y = ["sit", "walk", "sit", "walk", "sit", "walk"]
        data = shoal.load(x, y, list("aabbaa"), stride=64, channels=["u", "v"])
        assert (data.window.length, data.window.channels) == (128, ("u", "v"))
        counts = {d: (w.num_train, w.num_test) for d, w in data.devices.items()}
        assert {d: sum(each) for d, each in counts.items()} == {"a": 15, "b": 7}
        assert all(train > test > 0 for train, test in counts.values())
        np.testing.assert_array_equal(data.devices["a"].train_x[1], x[0][:, 64:192].astype("f4"))
        with pytest.raises(shoal.DataError, match="c: no recording has 128 consecutive samples"):
            shoal.load(x, y, list("aabbbc"), stride=64)

    def test_a_label_for_each_sample_or_none(self) -> None:
        rng = np.random.default_rng(0)
        x = [rng.random((2, n)) for n in self.LENGTHS]
        halves = [np.where(np.arange(n) < n // 2, "sit", "walk") for n in self.LENGTHS]
        data = shoal.load(x, halves, ["a"] * 6, length=32, stride=32)
        assert data.classes == ("sit", "walk")
        same(
            shoal.load({"a": (x, halves)}, length=32, stride=32),
            shoal.load(x, halves, ["a"] * 6, length=32, stride=32),
        )
        unlabelled = shoal.load(x, None, ["a"] * 6, length=32, stride=32).devices["a"]
        assert (unlabelled.num_train, unlabelled.num_unlabelled > 60) == (0, True)
        steps = shoal.load(x, halves, ["a"] * 6, length=32, stride=32, steps=4)
        assert (steps.window.steps, steps.devices["a"].train_y.shape[1]) == (4, 4)

    def test_what_is_wrong_is_said(self) -> None:
        x = [np.zeros((300, 2)), np.zeros((400, 2))]
        with pytest.raises(shoal.DataError, match=r"more channels than samples: use x\.T"):
            shoal.load(x, [0, 1], ["a", "b"], stride=64)
        with pytest.raises(shoal.DataError, match="expected a label for each of 2 recordings"):
            shoal.load([each.T for each in x], [0], ["a", "b"], stride=64)
        with pytest.raises(shoal.DataError, match=r"one for each sample, got \[7\]"):
            shoal.load([each.T for each in x], [np.zeros(7), 1], ["a", "b"], stride=64)
        with pytest.raises(shoal.DataError, match=r"expected a pair \(recordings, labels\)"):
            shoal.load({"a": (x, [0], x, [0])}, stride=64)
        with pytest.raises(shoal.DataError, match="stride and steps must be left out unless data"):
            shoal.load(np.zeros((4, 3, 16)), [0, 1, 0, 1], [0, 0, 1, 1], steps=4)


class Pairs(Dataset[Any]):
    """A map-style data set of any items."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> Any:
        return self._items[at]


class TestDataSets:
    def test_one_for_all_devices(self) -> None:
        x, y, owner = windows()
        numbers = np.arange(60) // 20
        tensors = torch.from_numpy(x), torch.from_numpy(y)
        same(shoal.load(TensorDataset(*tensors), owner=owner), shoal.load(x, y, owner))
        whole = TensorDataset(*tensors, torch.from_numpy(numbers))
        same(shoal.load(whole), shoal.load(x, y, numbers))
        same(shoal.load(torch.utils.data.Subset(whole, range(60))), shoal.load(x, y, numbers))

    def test_items_with_names(self) -> None:
        x, y, owner = windows()
        items = [
            {"x": a, "class": int(b), "who": str(c)} for a, b, c in zip(x, y, owner, strict=True)
        ]
        data = shoal.load(Pairs(items), label="class", person="who")
        same(data, shoal.load(x, y, owner))
        with pytest.raises(shoal.DataError, match="60 items with x, class, who, expected pairs"):
            shoal.load(Pairs(items))


class TestInputs:
    """Several sensors as a mapping: 50 Hz beside 1 Hz over the same spans."""

    def test_a_sample_of_a_slower_input_is_repeated(self, caplog: pytest.LogCaptureFixture) -> None:
        x, y, owner = windows(60, 150)
        rate = 60 + np.arange(180).reshape(60, 3)
        data = shoal.load({"acc": x, "heart": rate}, y, owner)
        assert data.window.channels == ("acc.0", "acc.1", "acc.2", "heart")
        first = data.devices["a"].train_x[0]
        np.testing.assert_array_equal(first[:3], x[0])
        assert first[3].tolist() == [60.0] * 50 + [61.0] * 50 + [62.0] * 50
        assert "input heart has 3 samples in a window of 150" in caplog.text

    def test_by_device_by_item_and_by_column(self) -> None:
        x, y, owner = windows(60, 30)
        rate = np.arange(60.0)[:, None]
        whole = shoal.load({"acc": x, "heart": rate}, y, owner)
        by_device = {
            d: ({"acc": x[owner == d], "heart": rate[owner == d]}, y[owner == d]) for d in "abc"
        }
        same(shoal.load(by_device, channels=whole.window.channels), whole)
        items = [({"acc": a, "heart": r}, int(b)) for a, r, b in zip(x, rate, y, strict=True)]
        same(shoal.load(Pairs(items), owner=owner), whole)
        table = pd.DataFrame({"acc": list(x), "heart": list(rate), "y": y, "who": owner})
        same(shoal.load(table, person="who", label="y"), whole)

    @pytest.mark.parametrize(
        "inputs",
        [
            {"acc": np.zeros((60, 3, 32)), "heart": np.zeros((59, 1, 1))},
            {"acc": np.zeros((60, 3, 32)), "heart": np.zeros(60)},
            {"acc": np.zeros((60, 3, 32)), "heart": np.zeros((60, 1, 0))},
        ],
    )
    def test_inputs_that_do_not_belong_together_are_refused(self, inputs: Any) -> None:
        _, y, owner = windows()
        with pytest.raises(shoal.DataError, match=r"several inputs are arrays .* got acc"):
            shoal.load(inputs, y, owner)


class TestLabelsThatMayMeanTwoThings:
    """They are asked about, whatever the algorithm."""

    @pytest.mark.parametrize("algorithm", ["personal", "fedavg"])
    @pytest.mark.parametrize(
        ("labels", "said"),
        [
            (lambda y: np.eye(2)[y], r"a column for each class, y\.argmax\(1\)"),
            (lambda y: np.eye(2, dtype=int)[y], r"a column for each class, y\.argmax\(1\)"),
            (lambda y: np.eye(2, dtype=bool)[y], r"a column for each class, y\.argmax\(1\)"),
            (lambda y: torch.eye(3)[y], r"a column for each class, y\.argmax\(1\)"),
            (lambda y: y.astype(float), r"or classes, y\.astype\(int\)"),
            (lambda y: pd.Series(y, dtype="Float64"), r"or classes, y\.astype\(int\)"),
            (lambda y: torch.from_numpy(y).float()[:, None], r"or classes, y\.astype\(int\)"),
        ],
    )
    def test_one_hot_and_whole_floats(
        self, algorithm: str, labels: Callable[..., Any], said: str
    ) -> None:
        x, y, owner = windows()
        with pytest.raises(shoal.DataError, match=said):
            shoal.simulate(shoal.load(x, labels(y), owner), algorithm=algorithm, rounds=1)

    def test_a_word_settles_it(self) -> None:
        x, y, owner = windows()
        for task, labels in (
            ("regression", y.astype(float)),
            ("multi-label", np.eye(2, dtype=int)[y]),
        ):
            data = shoal.load(x, labels, owner)
            result = shoal.simulate(data, algorithm=f"fedavg+{task}", rounds=1)
            assert result.predict(x[:2]).shape == (2, labels.reshape(60, -1).shape[1])

    def test_quantities_are_a_regression(self) -> None:
        x, y, owner = windows()
        result = shoal.simulate(shoal.load(x, y + 0.5, owner), rounds=1)
        assert list(result.mae) == ["value"]

    def test_text_of_pandas_is_classes_and_owners(self) -> None:
        x, y, owner = windows()
        table = pd.DataFrame({"y": np.array(["sit", "walk"])[y], "who": owner})
        data = shoal.load(x, table["y"], table["who"].astype("category"))
        assert (data.classes, list(data.devices)) == (("sit", "walk"), ["a", "b", "c"])
