"""Layouts of published data sets: persons as codes, words for nothing, files of several kinds."""

from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.windows import read_folder
from simulation.datasets.description import described
from tests.support.layouts import put, values
from wire.errors import ShoalError

LINE = "beside the recordings: "
COUNT = 600


def rows(label: str = "walk", count: int = COUNT, begin: int = 0) -> list[str]:
    """Rows of a time in seconds, two values and a label."""
    return [f"{(begin + i) / 50},{x},{y},{label}" for i, (x, y) in enumerate(values(count, 2))]


def two_classes(path: Path, header: str = "t,x,y,label") -> None:
    put(path, [header, *rows(), *rows("sit", begin=COUNT)])


def suggested(folder: Path) -> str:
    """The line of the warning, or of the error, of a folder, which is then in ``shoal.toml``."""
    try:
        text = described(shoal.load(folder))
    except ShoalError as error:
        text = str(error)
    line = text.rpartition(LINE)[2].splitlines()[0]
    path = folder / "shoal.toml"
    path.write_text((path.read_text() if path.exists() else "") + line + "\n")
    return line


@pytest.mark.parametrize(
    ("names", "persons"),
    [
        (("S01R01", "S01R02", "S02R01"), ["S01", "S02"]),
        (("a1_s1_t1", "a2_s1_t1", "a1_s2_t1"), ["s1", "s2"]),
        (("p1-t2", "p1-t3", "p2-t2"), ["p1", "p2"]),
        (("sub1run1", "sub1run2", "sub2run1"), ["sub1", "sub2"]),
        (("U01S01", "U01S02", "U02S01"), ["U01", "U02"]),
        (("E1P03", "E2P03", "E1P04"), ["P03", "P04"]),
    ],
)
def test_codes_in_the_names_of_files_say_the_person(
    tmp_path: Path, names: tuple[str, ...], persons: list[str]
) -> None:
    for name in names:
        two_classes(tmp_path / f"{name}.csv")
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == persons
    assert f"devices are the persons in the names of files, such as {persons[0]}" in described(
        fleet
    )


@pytest.mark.parametrize("names", [("x1y2", "x1y3"), ("run1", "run2"), ("a1_b2", "a2_b2")])
def test_other_codes_are_of_no_person(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        two_classes(tmp_path / f"{name}.csv")
    assert list(shoal.load(tmp_path).devices) == list(names)


@pytest.mark.parametrize("cell", ["?", "-", "--", "<NA>", "#N/A", "null"])
def test_a_word_for_nothing_is_a_cell_without_a_value(tmp_path: Path, cell: str) -> None:
    lines = [line.split(",") for line in [*rows(), *rows("sit", begin=COUNT)]]
    for at in (5, 300, 700):
        lines[at][1] = cell
    for at in range(550, 600):
        lines[at][3] = cell
    put(tmp_path / "a" / "r.csv", ["t,x,y,label", *map(",".join, lines)])
    fleet = shoal.load(tmp_path)
    assert fleet.window.channels == ("x", "y")
    assert fleet.classes == ("sit", "walk")
    assert all(np.isfinite(w.train_x).all() for w in fleet.devices.values())


@pytest.mark.parametrize("names", [("S1", "S2"), ("ann", "bob"), ("data_a", "data_b")])
def test_files_without_a_suffix_are_recordings(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        two_classes(tmp_path / name)
    (tmp_path / "README").write_text("Recordings of two persons.\n\n1, 2 and 3 are the axes.\n")
    (tmp_path / "LICENSE").write_text("Do as you like.\n")
    assert list(shoal.load(tmp_path).devices) == list(names)


class TestConstants:
    def put(self, folder: Path, cells: str, devices: str) -> None:
        for device in devices:
            lines = [f"{line},{cells}" for line in [*rows(), *rows("sit", begin=COUNT)]]
            put(folder / device / "r.csv", ["t,x,y,label,a,b", *lines])

    @pytest.mark.parametrize("cells", ["1,9.81", "0,0", "-3,1e-9"])
    def test_a_column_of_one_value_on_all_devices_is_left_out(
        self, tmp_path: Path, cells: str
    ) -> None:
        self.put(tmp_path, cells, "pq")
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("x", "y")
        assert described(fleet).count("it has one value in all recordings") == 2

    def test_on_one_device_it_is_a_channel_and_that_is_said(self, tmp_path: Path) -> None:
        self.put(tmp_path, "1,2", "p")
        windows, reading = read_folder(tmp_path / "p")
        assert windows.channels == ("x", "y", "a", "b")
        assert reading is not None
        texts = [text for text in reading.remarks if "has one value in all recordings" in text]
        assert len(texts) == 2

    def test_a_user_keeps_it(self, tmp_path: Path) -> None:
        self.put(tmp_path, "1,2", "pq")
        (tmp_path / "shoal.toml").write_text('columns."a" = "channel"\n')
        assert shoal.load(tmp_path).window.channels == ("x", "y", "a")


def test_columns_of_later_files_are_in_the_account(tmp_path: Path) -> None:
    two_classes(tmp_path / "a" / "1.csv")
    for device, number, column in (("a", 2, "session"), ("b", 1, "label_2"), ("b", 2, "index")):
        lines = [f"{line},7" for line in [*rows(), *rows("sit", begin=COUNT)]]
        put(tmp_path / device / f"{number}.csv", [f"t,x,y,label,{column}", *lines])
    text = described(shoal.load(tmp_path))
    for column, reason in (
        ("session", "it divides recordings"),
        ("label_2", "another column of labels"),
        ("index", "the number of a row"),
    ):
        assert any(
            line.startswith(column) and line.endswith(reason) for line in text.splitlines()
        ), text


class TestNoActivity:
    def put(self, folder: Path, labels: str) -> None:
        lines = [
            line for i, label in enumerate(labels.split()) for line in rows(label, 300, i * 300)
        ]
        put(folder / "a" / "r.csv", ["t,x,y,label", *lines])

    @pytest.mark.parametrize("word", ["0", "other", "Unknown", "transition", "NOTHING"])
    def test_a_class_between_all_others_may_be_none(self, tmp_path: Path, word: str) -> None:
        self.put(tmp_path, f"{word} 1 {word} 4 {word} 7 {word} 1 {word} 4 {word}")
        assert word in shoal.load(tmp_path).classes
        assert suggested(tmp_path) == f'classes = {{"{word}" = ""}}'
        assert shoal.load(tmp_path).classes == ("1", "4", "7")
        assert "is between" not in described(shoal.load(tmp_path))

    @pytest.mark.parametrize(
        "labels", ["0 1 2 0 2 1 0 1 2 1 0", "0 1 0 1 0 1 0 1 0 1", "0 1 2 3 4 5 0 1 2 3"]
    )
    def test_a_class_among_others_is_one(self, tmp_path: Path, labels: str) -> None:
        self.put(tmp_path, labels)
        assert "is between" not in described(shoal.load(tmp_path))

    def test_a_number_below_zero_has_a_way_out(self, tmp_path: Path) -> None:
        self.put(tmp_path, "-1 0 1 -1 0 1")
        assert suggested(tmp_path) == 'classes = {"-1" = ""}'
        assert shoal.load(tmp_path).classes == ("0", "1")


def test_persons_in_the_recordings_of_one_device_are_said(tmp_path: Path) -> None:
    lines = [f"{line},{p}" for p in ("ann", "bob") for line in [*rows(), *rows("sit", begin=COUNT)]]
    put(tmp_path / "r.csv", ["t,x,y,label,person", *lines])
    _, reading = read_folder(tmp_path)
    assert reading is not None
    assert any(text.startswith("samples of 2 persons (ann, bob)") for text in reading.remarks)


@pytest.mark.parametrize("parts", [("train", "test"), ("Training", "Validation")])
def test_tables_called_by_parts_are_said_to_be_devices(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        two_classes(tmp_path / f"{part}.csv")
    text = described(shoal.load(tmp_path))
    assert f"the names {', '.join(sorted(parts))} do not decide" in text
    assert "Each of them is taken for a device" in text


def test_a_watch_and_a_phone_of_each_person_are_said_to_be_taken_together(tmp_path: Path) -> None:
    for person in ("1600", "1601"):
        for device in ("phone", "watch"):
            lines = [f"{person},{line}" for line in [*rows(), *rows("sit", begin=COUNT)]]
            put(tmp_path / device / f"data_{person}_{device}.csv", ["person,t,x,y,label", *lines])
    fleet = shoal.load(tmp_path)
    assert list(fleet.devices) == ["1600", "1601"]
    assert "taken together: phone, watch" in described(fleet)
    assert suggested(tmp_path) == 'recordings = ["*phone*"]'
    assert sum(w.num_train + w.num_test for w in shoal.load(tmp_path).devices.values()) * 2 == sum(
        w.num_train + w.num_test for w in fleet.devices.values()
    )


class TestFilesOfSeveralKinds:
    """Files without a header whose columns differ, as measurements and labels of SHL do."""

    def put(self, folder: Path, positions: tuple[str, ...] = ("Hips",)) -> None:
        for user in ("User1", "User2"):
            times = [1498120000000 + i * 10 for i in range(2000)]
            for position in positions:
                cells = (f"{t} {' '.join(c)}" for t, c in zip(times, values(2000, 4), strict=True))
                put(folder / user / f"{position}_Motion.txt", [*cells])
            labels = [f"{t} {1 + i // 1000} 0 0 0 0" for i, t in enumerate(times)]
            put(folder / user / "Label.txt", labels)

    def say(self, folder: Path, names: str) -> None:
        (folder / "shoal.toml").write_text(f"names = {names}\n")

    def test_each_kind_has_names_by_a_pattern(self, tmp_path: Path) -> None:
        self.put(tmp_path)
        self.say(tmp_path, '{"Label*" = ["t", "label", "label_2..label_5"], "*" = ["t", "c1..c4"]}')
        fleet = shoal.load(tmp_path)
        assert fleet.window.channels == ("c1", "c2", "c3", "c4")
        assert (fleet.window.rate_hz, fleet.classes) == (100, ("1", "2"))
        assert all(w.num_train and not w.num_unlabelled for w in fleet.devices.values())

    def test_names_of_one_kind_alone_are_refused_with_both_ways(self, tmp_path: Path) -> None:
        self.put(tmp_path)
        self.say(tmp_path, '["t", "c1..c4"]')
        with pytest.raises(ShoalError, match=r"row of 6 cells .* in place of 5 names") as raised:
            shoal.load(tmp_path)
        table = str(raised.value).partition("names, ")[2].partition(". If all have 6")[0]
        assert table == 'names = {"Label.txt" = ["t", "c1..c5"], "*" = ["t", "c1..c4"]}'

    def test_a_file_without_a_pattern_gets_one(self, tmp_path: Path) -> None:
        self.put(tmp_path)
        self.say(tmp_path, '{"*Motion*" = ["t", "c1..c4"]}')
        assert suggested(tmp_path) == 'names."Label.txt" = ["t", "c1..c5"]'
        with pytest.raises(ShoalError, match="channels must be c1, c2, c3, c4, as in Hips_Motion"):
            shoal.load(tmp_path)

    @pytest.mark.parametrize("pattern", ["Lable.txt", "*.csv", "User3/*"])
    def test_a_pattern_of_no_file_is_an_error(self, tmp_path: Path, pattern: str) -> None:
        self.put(tmp_path)
        names = '"Label*" = ["t", "label", "label_2..label_5"], "*" = ["t", "c1..c4"]'
        self.say(tmp_path, f'{{"{pattern}" = ["t", "x"], {names}}}')
        with pytest.raises(ShoalError, match="line 1, names: no file has a name like"):
            shoal.load(tmp_path)

    def test_labels_beside_several_recordings_are_of_the_one_that_is_chosen(
        self, tmp_path: Path
    ) -> None:
        self.put(tmp_path, ("Hand", "Hips"))
        self.say(tmp_path, '{"Label*" = ["t", "label", "label_2..label_5"], "*" = ["t", "c1..c4"]}')
        assert suggested(tmp_path) == 'recordings = ["Hand_Motion.txt"]'
        fleet = shoal.load(tmp_path)
        assert fleet.classes == ("1", "2")
        assert all(w.num_train for w in fleet.devices.values())
