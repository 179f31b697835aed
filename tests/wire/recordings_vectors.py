"""The vectors of recordings, ``recordings.json``: files of a device's folder, the windows cut of
them, or that they are refused."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.windows import load_folder
from tests.wire.signed_vectors import VECTORS
from wire.arrays.tensors import Array
from wire.errors import DataError

FILE = VECTORS / "recordings.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "unlabelled_x")
NAMES = "rest\nwalk\n"


def _rows(header: str, *columns: list[Any], end: str = "\n") -> str:
    return end.join([header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))])


def _said(kind: str, count: int, rng: np.random.Generator) -> tuple[str, list[list[Any]]]:
    """Columns that say something of samples: classes, their names, names that are there, or
    quantities; of some samples nothing."""
    runs = np.repeat(rng.integers(-1, 2, count), 9)[:count].tolist()
    if kind in ("classes", "named"):
        return "label", [
            [("rest", "walk")[at] if kind == "named" else at if at >= 0 else "" for at in runs]
        ]
    if kind == "names":
        return "label.load,label.fault", [
            [("", 0, 1)[at] for at in rng.integers(0, 3, count)] for _ in range(2)
        ]
    eighths = (rng.integers(-80, 80, count) / 8).tolist()
    return "target.speed,target.heat", [
        [v if i % 4 == 0 or kind == "targets" else "" for i, v in enumerate(eighths)],
        runs,
    ]


def _cases() -> list[dict[str, Any]]:
    rng, made = np.random.default_rng(16), list[dict[str, Any]]()

    def add(
        name: str, files: dict[str, str], length: int = 4, stride: int = 4, steps: int = 0
    ) -> None:
        made.append(
            {"name": name, "files": files, "length": length, "stride": stride, "steps": steps}
        )

    for kind, steps in (
        ("classes", 0),
        ("classes", 4),
        ("named", 0),
        ("named", 2),
        ("names", 0),
        ("targets", 0),
        ("seldom", 0),
    ):
        for length, stride in ((8, 4), (4, 7), (1, 1) if not steps else (12, 5)):
            files = {"classes.txt": NAMES} if kind == "named" else {}
            for name, count in (("a.csv", 21), ("b.csv", 30)):
                numbers = [(rng.integers(-99, 99, count) / 4).tolist() for _ in range(2)]
                header, columns = _said(kind, count, rng)
                files[name] = _rows(
                    f"t,ax,{header},ay", list(range(count)), numbers[0], *columns, numbers[1]
                )
            add(f"{kind}, {length} every {stride}, {steps} steps", files, length, stride, steps)
    n = list(range(16))
    spreadsheet = "\ufeff" + _rows("t , ax, label", n, n, ["1.0"] * 16, end=" \r\n")
    add("a mark, blanks, carriage returns, whole numbers with a point", {"a.csv": spreadsheet})
    for text in ("1.000000000000000000e+00", "2.00", "1.", "1.5", "1.0e400", "1.0e16", "1e0"):
        add(f"a label {text}", {"a.csv": _rows("t,ax,label", n, n, [text] * 16)})
    add(
        "quotation marks and empty lines",
        {
            "a.csv": _rows('"ax","label"', [f'"{i}.5"' for i in n], [0] * 16, end="\n\n"),
            ".b.csv": "x",
        },
    )
    add("no labels at all", {"a.csv": _rows("ax,ay", n, n)})
    add(
        "cells that a row lacks at its end are of a column that is no channel",
        {"a.csv": "ax,label,t" + "\n1.5,0" * 16},
    )
    moving = [i * 5 % 7 for i in n]
    for time in (
        *("Time", "timestamp", "seconds_elapsed", "Timestamp (s)", "Unnamed: 0", ""),
        *("__index_level_0__", "Zeitstempel", "epoch_ms", "Shimmer_5F2A_Timestamp_Unix_CAL"),
        *("Marca de tiempo", "ActivityMinute"),
    ):
        add(f"no channel: {time!r}", {"a.csv": _rows(f"{time},ax,label", n, moving, [0] * 16)})
    for label in (
        *("LABEL", "activity", "Activity_Name", "gt"),
        *("Ta\u0308tigkeit", "T\xc4TIGKEIT", "activit\xe9"),
    ):
        add(f"classes in {label!r}", {"a.csv": _rows(f"t,ax,{label}", n, moving, [1] * 16)})
    for label in ("label", "Activity", "label.load", "target.speed"):
        for other in ("label_source", "Label:SIT", "label 2", "gt_2", "labeller"):
            row = _rows(f"{other},ax,{label}", moving, moving, [1] * 16)
            add(f"{other!r} beside {label!r}", {"a.csv": row})
    for other in ("label_source", "LABEL.load", "gt_2", "label_time"):
        row = _rows(f"{other},ax,ay", n, moving, moving)
        add(f"{other!r} without a label", {"a.csv": row})
    for person in ("Proband_Nr", "Sujeto", "Nutzer"):
        files = {"a.csv": _rows(f"{person},ax,label", [3] * 16, moving, [1] * 16)}
        add(f"a person: {person!r}", files)
    for name in ("\u6e29\u5ea6", "\u0422\u0435\u043c\u043f", "Gr\xf6\xdfe"):
        add(f"a channel: {name!r}", {"a.csv": _rows(f"t,{name},label", n, moving, [0] * 16)})
    add(
        "a person, and another time",
        {"a.csv": _rows("time,User ID,ax,Arrival_Time,label", n, [3] * 16, moving, n, [1] * 16)},
    )
    counts = ((0, 9), (1, 5), (0, 4), (1, 6), (0, 5), (1, 7), (0, 8))
    runs = [at for at, count in counts for _ in range(count)]
    many = list(range(len(runs)))
    add(
        "classes one after another, some too short for both parts",
        {
            "a.csv": _rows("ax,label", [i * 5 % 7 for i in many], runs),
            "b.csv": _rows("ax,label", [i * 3 % 7 for i in many], runs[::-1]),
        },
        2,
        1,
    )
    add(
        "numbers with exponents",
        {"a.csv": _rows("ax,label", ["1e-3", "+.5", "2.", "-1E2"] * 4, [1] * 16)},
    )
    classes = {"classes.txt": NAMES.replace("\n", "\r\n")}
    add(
        "names of classes with carriage returns",
        classes | {"a.csv": _rows("ax,label", n, ["walk"] * 16)},
    )
    for header, row in (
        ("ax,label", "1,2.5"),
        ("ax,label", "1,-1"),
        ("ax,label", "1,65536"),
        ("ax,label", "1,1.5"),
        ("ax,label", "1,0,2"),
        ("ax,label", "1"),
        ("ax,label", "nan,0"),
        ("ax,label", "inf,0"),
        ("ax,label", "1e39,0"),
        ("ax,label", ",0"),
        ("ax,label", "0x1p3,0"),
        ("ax,label", "1f,0"),
        ("ax,label", "1_0,0"),
        ("ax,label", "1,1_0"),
        ("ax,label", "\uff11,0"),
        ("ax,label", "1,\uff11"),
        ("ax,target.speed", "1,1_0"),
        ("ax,Activity,annotation", "1,0,0"),
        ("ax,label:SIT,label:WALK", "1,0,1"),
        ("ax,label1,Label2", "1,0,1"),
        ("ax,Timestamp", ",0"),
        ("ax,ax", "1,0"),
        ("label,t", "1,0"),
        ("ax,label,target.speed", "1,0,2.5"),
        ("ax,label.a,target.speed", "1,0,2.5"),
        ("ax,label.", "1,0"),
        ("ax,target.", "1,0"),
        ("ax,label.a", "1,2"),
        ("ax,label.a", "1,x"),
        ("ax,target.speed", "1,inf"),
        ("ax,target.speed", "1,1e39"),
        ("ax,target.speed", "1"),
    ):
        add(f"{header}: {row}", {"a.csv": "\n".join([header, *[row] * 16])})
    plain = "\n".join(["ax,label", *["1,0"] * 16])
    add("a name that is none of the classes", classes | {"a.csv": plain})
    add(
        "a class listed twice",
        {"classes.txt": NAMES + "rest\n", "a.csv": _rows("ax,label", n, ["rest"] * 16)},
    )
    add("other channels", {"a.csv": plain, "b.csv": plain.replace("ax", "ay")})
    add("another kind of label", {"a.csv": plain, "b.csv": plain.replace("label", "target.speed")})
    add("too short", {"a.csv": "\n".join(["ax,label", *["1,0"] * 3])})
    add("steps that do not divide a window", {"a.csv": plain}, steps=3)
    add("one step", {"a.csv": plain}, steps=1)
    add("steps of quantities", {"a.csv": plain.replace("label", "target.speed")}, steps=2)
    add("no recording", {"classes.txt": NAMES})
    return made


def windows_of(case: dict[str, Any]) -> Windows | None:
    """The windows of a case; None where its files are refused."""
    with tempfile.TemporaryDirectory() as name:
        for file, text in case["files"].items():
            (Path(name) / file).write_bytes(text.encode())
        try:
            return load_folder(Path(name), case["length"], case["stride"], case["steps"])
        except DataError:
            return None


def said_of(array: Array) -> dict[str, Any]:
    """An array as the file has it."""
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "numbers": array.ravel().tolist(),
    }


def text() -> str:
    """The file, a case a line."""
    rows = []
    for case in _cases():
        windows = windows_of(case)
        cut = windows and {"names": list(windows.names)} | {
            part: said_of(getattr(windows, part)) for part in ARRAYS
        }
        rows.append(json.dumps(case | {"windows": cut}))
    return "[\n" + ",\n".join("  " + row for row in rows) + "\n]\n"
