"""Layouts of published data sets: persons as codes, words for nothing, files of several kinds."""

from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data.windows import read_folder
from simulation.datasets.description import described
from tests.support.layouts import COUNT, put, rows, suggested, values
from wire.errors import ShoalError


def two_classes(path: Path, header: str = "t,x,y,label") -> None:
    put(path, [header, *rows(), *rows("sit", begin=COUNT)])


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


class TestPersonOfNames:
    """A user's pattern of names in which the person stands."""

    @pytest.mark.parametrize(
        ("names", "pattern", "persons"),
        [
            (("WAL_1_1", "JOG_1_2", "WAL_2_1"), "*_{person}_*", ["1", "2"]),
            (("D01_SA01_R01", "D02_SA01_R01", "D01_SA02_R01"), "*_{person}_*", ["SA01", "SA02"]),
            (("v2_walking_01_03", "v2_sitting_01_04"), "v2_*_{person}_*", ["01"]),
            (("x-ann", "y-ann", "x-bob"), "*-{person}", ["ann", "bob"]),
            (("p01-left", "p01-right"), "{person}", ["p01-left", "p01-right"]),
        ],
    )
    def test_it_says_whose_device_has_a_recording(
        self, tmp_path: Path, names: tuple[str, ...], pattern: str, persons: list[str]
    ) -> None:
        for name in names:
            two_classes(tmp_path / f"{name}.csv")
        (tmp_path / "shoal.toml").write_text(f'person = "{pattern}"\n')
        assert list(shoal.load(tmp_path).devices) == persons

    def test_folders_may_be_in_it(self, tmp_path: Path) -> None:
        for session in ("session1", "session2"):
            for person in ("s1", "s2"):
                two_classes(tmp_path / session / f"{person}.csv")
        (tmp_path / "shoal.toml").write_text('person = "*/{person}"\n')
        assert list(shoal.load(tmp_path).devices) == ["s1", "s2"]

    @pytest.mark.parametrize(
        ("pattern", "error"),
        [
            ("*_s1", "must be a pattern with one {person}"),
            ("{person}_{person}", "must be a pattern with one {person}"),
            ("{person}_*", "the name 'b' of a recording does not fit"),
        ],
    )
    def test_what_it_cannot_say_is_one_error(
        self, tmp_path: Path, pattern: str, error: str
    ) -> None:
        for name in ("a_1", "b"):
            two_classes(tmp_path / f"{name}.csv")
        (tmp_path / "shoal.toml").write_text(f'person = "{pattern}"\n')
        with pytest.raises(ShoalError, match=error):
            shoal.load(tmp_path)

    def test_devices_of_one_class_each_are_said(self, tmp_path: Path) -> None:
        for name in ("WAL", "JOG", "STD"):
            put(tmp_path / name / f"{name}_1_1.csv", ["t,x,y,label", *rows(name)])
        text = described(shoal.load(tmp_path))
        assert "each device has one class alone (JOG has JOG, STD has STD, WAL has WAL)" in text


class TestSensorsOfADevice:
    @pytest.mark.parametrize(
        "names",
        [
            ("acc", "mag"),
            ("walk_acc", "walk_resp"),
            ("ecg", "emg"),
            ("a_acc_50.0Hz", "a_gyr_100.0Hz"),
        ],
    )
    def test_names_of_sensors_join_files(self, tmp_path: Path, names: tuple[str, str]) -> None:
        for name in names:
            put(tmp_path / "p" / f"{name}.csv", ["t,x,y,label", *rows()])
        fleet = shoal.load(tmp_path)
        assert len(fleet.window.channels) == 4
        assert sum(w.num_train + w.num_test for w in fleet.devices.values()) == 5

    @pytest.mark.parametrize(
        "names",
        [
            ("1_acc", "2_gyro"),
            ("acc_1700000000", "gyr_1700000003"),
            ("s1-acc-v1", "s1-gyro-v2"),
        ],
    )
    def test_files_of_sensors_with_other_names_are_said(
        self, tmp_path: Path, names: tuple[str, str]
    ) -> None:
        for name in names:
            put(tmp_path / "p" / f"{name}.csv", ["t,x,y,label", *rows()])
        assert "are named by other sensors, and have the same channels" in described(
            shoal.load(tmp_path)
        )

    def test_one_of_the_files_of_a_recording_is_chosen(self, tmp_path: Path) -> None:
        for name in ("acc", "gyro"):
            put(tmp_path / "p" / f"{name}.csv", ["t,x,y,label", *rows()])
        (tmp_path / "shoal.toml").write_text('recordings = ["*acc*"]\n')
        assert shoal.load(tmp_path).window.channels == ("acc.x", "acc.y")


class TestUnits:
    def put(self, folder: Path, name: str, step: float) -> None:
        lines = [f"{i * step:.9g},{x},{y},walk" for i, (x, y) in enumerate(values(900, 2))]
        put(folder / "a" / "r.csv", [f"{name},x,y,label", *lines])

    @pytest.mark.parametrize(
        ("name", "step"),
        [
            ("Time (min)", 1 / 3000),
            ("time [h]", 1 / 180_000),
            ("t (d)", 1 / 4_320_000),
            ("time_h", 1 / 180_000),
            ("elapsed_min", 1 / 3000),
            ("microsecond", 20_000),
            ("t_usec", 20_000),
        ],
    )
    def test_the_unit_in_a_name_counts(self, tmp_path: Path, name: str, step: float) -> None:
        self.put(tmp_path, name, step)
        (tmp_path / "shoal.toml").write_text(f'columns."{name}" = "time"\n')
        assert shoal.load(tmp_path).window.rate_hz == pytest.approx(50, rel=0.01)

    def test_impossible_rates_ask_for_the_unit(self, tmp_path: Path) -> None:
        self.put(tmp_path, "timestamp", 1 / 4_320_000)
        with pytest.raises(ShoalError, match=r"4.32e\+06 samples a second. Say their unit"):
            shoal.load(tmp_path)
        assert suggested(tmp_path) == 'time_unit = "d"'
        assert shoal.load(tmp_path).window.rate_hz == pytest.approx(50, rel=0.01)

    @pytest.mark.parametrize(("step", "unit"), [(0.02, "s"), (20, "ms"), (20_000, "us")])
    def test_a_unit_by_values_is_in_the_account(
        self, tmp_path: Path, step: float, unit: str
    ) -> None:
        self.put(tmp_path, "t", step)
        assert f"in {unit}, by its values" in described(shoal.load(tmp_path))

    def test_an_unknown_unit_is_one_error(self, tmp_path: Path) -> None:
        self.put(tmp_path, "t", 1)
        (tmp_path / "shoal.toml").write_text('time_unit = "weeks"\n')
        with pytest.raises(
            ShoalError, match=r"line 1: time_unit must be one of s, ms, us, ns, min"
        ):
            shoal.load(tmp_path)


@pytest.mark.parametrize(("mark", "separator"), [(".", ";"), (",", ";"), (".", ","), (",", "\t")])
def test_marks_of_thousands_are_refused(tmp_path: Path, mark: str, separator: str) -> None:
    def marked(value: int) -> str:
        return str(value) if abs(value) < 1000 else f"{value // 1000}{mark}{value % 1000:03}"

    z = [800 + (i * 37) % 400 for i in range(600)]
    lines = [separator.join([str(i * 20), str(i % 90), marked(v), "walk"]) for i, v in enumerate(z)]
    put(tmp_path / "a" / "r.csv", [separator.join(["t", "x", "z", "label"]), *lines])
    with pytest.raises(ShoalError, match=r"column z: .* may be a number with a mark of thousands"):
        shoal.load(tmp_path)


@pytest.mark.parametrize("comment", ["# a", "// a", "% a, b"])
def test_lines_of_comments_before_a_table_are_skipped(tmp_path: Path, comment: str) -> None:
    put(tmp_path / "a" / "r.csv", [comment, comment, "t,x,y,label", *rows()])
    assert shoal.load(tmp_path).window.channels == ("x", "y")


def test_a_header_with_a_name_twice_gets_names(tmp_path: Path) -> None:
    lines = [f"{i / 50},{','.join(c)},walk" for i, c in enumerate(values(600, 4))]
    put(tmp_path / "a" / "r.csv", ["t,x,y,x,y,label", *lines])
    assert suggested(tmp_path) == 'names = ["t", "x_1", "y_1", "x_2", "y_2", "label"]'
    assert shoal.load(tmp_path).window.channels == ("x_1", "y_1", "x_2", "y_2")


@pytest.mark.parametrize("header", ["user_id,device_id", "device_id,subject", "deviceid,person"])
def test_a_device_beside_a_person_divides_recordings(tmp_path: Path, header: str) -> None:
    persons = header.split(",")
    lines = []
    for number in (1, 2):
        cells = [f"u{number}" if name.startswith(("u", "s", "p")) else "7" for name in persons]
        lines += [f"{','.join(cells)},{line}" for line in [*rows(), *rows("sit", begin=COUNT)]]
    put(tmp_path / "all.csv", [f"{header},t,x,y,label", *lines])
    assert list(shoal.load(tmp_path).devices) == ["u1", "u2"]


@pytest.mark.parametrize("name", ["my data", "Müll", "a" * 80, "x (copy)"])
def test_a_folder_of_any_name_is_simulated(tmp_path: Path, name: str) -> None:
    for device in ("a", "b"):
        two_classes(tmp_path / name / device / "r.csv")
    result = shoal.simulate(tmp_path / name, rounds=1, algorithm="fedavg", exportable="off")
    assert result.accuracy.mean is not None


@pytest.mark.parametrize("name", ["sensor", "Sensor Type", "data_type"])
def test_rows_of_several_sensors_are_refused(tmp_path: Path, name: str) -> None:
    lines = [f"{'acc' if i % 2 else 'gyr'},{line}" for i, line in enumerate(rows())]
    put(tmp_path / "a" / "r.csv", [f"{name},t,x,y,label", *lines])
    with pytest.raises(
        ShoalError, match=r"is likely the sensor of the row\. Write the rows of each"
    ):
        shoal.load(tmp_path)


@pytest.mark.parametrize("name", ["Window", "window_id", "PacketCounter", "Sample Index", "frame"])
def test_a_number_of_rows_or_windows_is_no_channel(tmp_path: Path, name: str) -> None:
    lines = [f"{i // 60 % 10},{line}" for i, line in enumerate(rows())]
    put(tmp_path / "a" / "r.csv", [f"{name},t,x,y,label", *lines])
    assert shoal.load(tmp_path).window.channels == ("x", "y")


class TestFractions:
    def put(self, folder: Path, times: list[str]) -> None:
        cells = zip(times, values(len(times), 2), strict=True)
        put(folder / "a" / "r.csv", ["time,x,y,label", *(f"{t},{x},{y},a" for t, (x, y) in cells)])

    @pytest.mark.parametrize("begin", ["09:00:", "2026-01-31T09:00:", "31.01.2026 09:00:"])
    def test_those_without_zeros_are_refused(self, tmp_path: Path, begin: str) -> None:
        self.put(tmp_path, [f"{begin}{i // 50:02}.{i % 50 * 20}" for i in range(600)])
        with pytest.raises(ShoalError, match=r"line 7, .*fractions of seconds lack zeros"):
            shoal.load(tmp_path)

    def test_those_without_zeros_at_their_end_are_read(self, tmp_path: Path) -> None:
        times = [f"09:00:{i / 50:06.3f}".rstrip("0").rstrip(".") for i in range(600)]
        self.put(tmp_path, times)
        fleet = shoal.load(tmp_path)
        assert fleet.window.rate_hz == pytest.approx(50)
        assert fleet.reading is not None
        assert not any(fleet.reading.gaps.values())


def test_a_header_in_the_midst_of_numbers_is_named_by_its_line(tmp_path: Path) -> None:
    put(tmp_path / "a" / "r.csv", ["t,x,y,label", *rows(), "t,x,y,label", *rows()])
    with pytest.raises(ShoalError, match=r"line 602, column t: 't' is no time"):
        shoal.load(tmp_path)


@pytest.mark.parametrize("separator", [" ", ",", ";", "\t"])
def test_names_of_rows_without_one_in_the_header_are_no_channel(
    tmp_path: Path, separator: str
) -> None:
    lines = [f'"{i + 1}",{line}'.replace(",", separator) for i, line in enumerate(rows())]
    put(tmp_path / "a" / "r.csv", [separator.join(["t", "x", "y", "label"]), *lines])
    fleet = shoal.load(tmp_path)
    assert (fleet.window.channels, fleet.classes) == (("x", "y"), ("walk",))


def test_names_stand_for_a_header_of_as_many(tmp_path: Path) -> None:
    lines = [
        f"{i / 50},{x},{y},{i // 300},{1 - i // 300}" for i, (x, y) in enumerate(values(600, 2))
    ]
    put(tmp_path / "a" / "r.csv", ["t,x,y,walking,sitting", *lines])
    (tmp_path / "shoal.toml").write_text(
        'names = ["t", "x", "y", "label.walking", "label.sitting"]\n'
    )
    fleet = shoal.load(tmp_path)
    assert (fleet.window.channels, fleet.classes) == (("x", "y"), ("walking", "sitting"))
