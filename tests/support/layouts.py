"""Small folders of recordings in the layouts that programs and published data sets have."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

import shoal
from simulation.datasets.description import described
from wire.errors import ShoalError

SEED = 7
LINE = "beside the recordings: "
COUNT = 600
STATISTICS = ("mean", "std", "mad", "max")


def put(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def values(count: int, width: int) -> list[list[str]]:
    x = np.random.default_rng(SEED).normal(size=(count, width))
    return [[f"{value:.5f}" for value in row] for row in x]


def rows(label: str = "walk", count: int = COUNT, begin: int = 0) -> list[str]:
    """Rows of a time in seconds, two values and a label."""
    return [f"{(begin + i) / 50},{x},{y},{label}" for i, (x, y) in enumerate(values(count, 2))]


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


def sensor_logger(folder: Path) -> None:
    sensors: Mapping[str, tuple[float, str]] = {
        "Accelerometer": (100, "z,y,x"),
        "WatchHeartRate": (1, "bpm"),
        "Gyroscope": (100, "z,y,x"),
        "Location": (1, "latitude,longitude,speed"),
        "Battery": (0.1, "batteryLevel,batteryState"),
        "Pedometer": (0.4, "steps"),
    }
    for person in ("ann", "bob"):
        for name in ("walking", "sitting"):
            inner = folder / person / f"{name}-2026-01-31_12-00-00"
            for sensor, (hz, columns) in sensors.items():
                rows = [
                    f"{int(1.7e18 + i / hz * 1e9)},{i / hz:.5f},{','.join(cells)}"
                    for i, cells in enumerate(values(int(25 * hz), columns.count(",") + 1))
                ]
                put(inner / f"{sensor}.csv", [f"time,seconds_elapsed,{columns}", *rows])
            put(inner / "Metadata.csv", ["version,device name", "3,phone"])
            put(inner / "Annotation.csv", ["time,seconds_elapsed,text"])


def phyphox(folder: Path, separator: str = ",", point: str = ".") -> None:
    names = ["Time (s)", *(f"Linear Acceleration {axis} (m/s^2)" for axis in "xyz")]
    header = separator.join(f'"{name}"' for name in names)
    for person in ("one", "two"):
        for name in ("walk", "stairs"):
            rows = [
                separator.join([f"{i / 100:.9E}", *cells]).replace(".", point)
                for i, cells in enumerate(values(600, 3))
            ]
            inner = folder / person / f"{name} {person}"
            put(inner / "Raw Data.csv", [header, *rows])
            put(inner / "meta" / "time.csv", ['"event","experiment time"', '"START",0'])


def phyphox_of_spreadsheets(folder: Path) -> None:
    phyphox(folder, ";", ",")


def physics_toolbox(folder: Path, header: str = "time,gFx,gFy,gFz,TgF") -> None:
    for person in ("one", "two"):
        for name in ("walk", "run"):
            rows = [
                f"{i / 50:.3f},{','.join(cells)}"
                for i, cells in enumerate(values(500, header.count(",")))
            ]
            put(folder / person / f"{name}.csv", [header, *rows])


def physics_toolbox_of_forces(folder: Path) -> None:
    physics_toolbox(folder, "time, ax (m/s^2), ay (m/s^2), az (m/s^2), aT (m/s^2)")


def core_motion(folder: Path) -> None:
    begin = datetime(2026, 1, 31, 12)
    for person in ("one", "two"):
        rows = [
            f"{begin + timedelta(seconds=i / 50)} +0200,{i},{','.join(cells)},{i // 400}"
            for i, cells in enumerate(values(800, 2))
        ]
        names = "loggingTime(txt),loggingSample(N),motionUserAccelerationX(G),motionYaw(rad)"
        put(folder / f"{person}.csv", [f"{names},label(N)", *rows])


def health_kit(folder: Path) -> None:
    begin = datetime(2026, 1, 31, 12)
    rows = [
        f"Watch,count/min,{begin + timedelta(seconds=5 * i)} +0000,"
        f"{begin + timedelta(seconds=5 * i + 1)} +0000,{60 + i % 9},{'rest' if i < 450 else 'run'}"
        for i in range(900)
    ]
    put(folder / "one.csv", ["sourceName,unit,startDate,endDate,value,activity", *rows])


def wisdm(folder: Path) -> None:
    rows, at = list[str](), 49_105_962_326_000
    for person in (33, 5):
        for name in ("Jogging", "Upstairs"):
            for cells in values(700, 3):
                at += 50_000_000
                rows.append(f"{person},{name},{at},{','.join(cells)};")
    rows[12] += rows.pop(13)  # two rows in one line, as in the published file
    rows[30] = rows[30].replace(";", ",;")
    put(folder / "raw.txt", rows)


def wisdm_of_sensors(folder: Path) -> None:
    for sensor in ("accel", "gyro"):
        rows, at = list[str](), 252_207_666_810_782
        for name in "AB":
            for cells in values(700, 3):
                at += 50_000_000
                rows.append(f"1600,{name},{at},{','.join(cells)};")
        put(folder / "watch" / sensor / f"data_1600_{sensor}_watch.txt", rows)


def pamap2(folder: Path) -> None:
    for person in (101, 102):
        rows = [
            f"{8 + i / 100:.2f} {(0, 4, 12)[i // 800]} {'NaN' if i % 11 else 100 + i % 3} "
            + " ".join("NaN" if i % 97 == 5 else cell for cell in cells)
            for i, cells in enumerate(values(2400, 51))
        ]
        put(folder / f"subject{person}.dat", rows)


def opportunity(folder: Path) -> None:
    for person in (1, 2):
        rows = [
            f"{33 * i} {' '.join(f'{1000 * float(cell):.0f}' for cell in cells)} NaN "
            f"{(0, 1, 2)[i // 700]} 0 {(101, 102, 0)[i // 700]} 0"
            for i, cells in enumerate(values(2100, 30))
        ]
        put(folder / f"S{person}-ADL1.dat", rows)


def hhar(folder: Path) -> None:
    for sensor in ("accelerometer", "gyroscope"):
        rows = list[str]()
        for person in "ab":
            for device in ("nexus4_1", "s3_1"):  # both at the same time
                for k, name in enumerate(("stand", "null", "walk")):
                    rows += [
                        f"{i},{1_424_696_633_908 + 5 * (500 * k + i)},"
                        f"{1_424_696_631_913_248_572 + 5_000_000 * (500 * k + i)},"
                        f"{','.join(cells)},{person},{device[:-2]},{device},{name}"
                        for i, cells in enumerate(values(500, 3))
                    ]
        header = "Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt"
        put(folder / f"Phones_{sensor}.csv", [header, *rows])


def capture24(folder: Path) -> None:
    begin = datetime(2016, 11, 13, 2, 18)
    names = ("", "7030 sleeping;MET 0.95", "home activity;sitting;MET 1.3")
    for person in ("P001", "P002"):
        rows = [
            f"{begin + timedelta(seconds=i / 100):%Y-%m-%d %H:%M:%S.%f},{','.join(cells)},"
            f"{names[i // 700]}"
            for i, cells in enumerate(values(2100, 3))
        ]
        put(folder / f"{person}.csv", ["time,x,y,z,annotation", *rows])
    put(folder / "metadata.csv", ["pid,age,sex", "P001,38-52,F"])
    put(folder / "annotation-label-dictionary.csv", ["annotation,label:Willetts", "7030,sleep"])


def table_of_features(folder: Path) -> None:
    names = [
        f"tBodyAcc-{name}()-{axis}" for name in ("mean", "std", "mad", "max") for axis in "XYZ"
    ]
    for file in ("train", "test"):
        rows = [
            f"{','.join(cells)},{1 + i // 60},{('STANDING', 'SITTING', 'LAYING')[i // 20 % 3]}"
            for i, cells in enumerate(values(180, 12))
        ]
        put(folder / f"{file}.csv", [",".join([*names, "subject", "Activity"]), *rows])


def table_of_windows(folder: Path) -> None:
    rows = [
        f"{i},{','.join(cells)},{i // 200},{'ab'[i // 50 % 2]}"
        for i, cells in enumerate(values(400, 64))
    ]
    put(folder / "all.csv", [f"id,{','.join(f'x_{i}' for i in range(64))},user,activity", *rows])


def empatica(folder: Path) -> None:
    sensors = {"ACC": (32, 3), "BVP": (64, 1), "EDA": (4, 1), "HR": (1, 1)}
    for at, person in enumerate(("ann", "bob")):
        for k, name in enumerate(("walk", "sit")):
            begin = 1_683_194_400 + 600 * (2 * at + k)
            inner = folder / person / f"{name}_{begin}_A01F3C"
            for sensor, (hz, width) in sensors.items():
                start = ", ".join([f"{begin + 10 * (sensor == 'HR')}.000000"] * width)
                rows = [",".join(cells) for cells in values(40 * hz, width)]
                rate = ", ".join([f"{hz}.000000"] * width)
                put(inner / f"{sensor}.csv", [start, rate, *rows])
            put(inner / "IBI.csv", [f"{begin}.000000, IBI", "0.8,0.81", "1.6,0.79"])
            put(inner / "tags.csv", [f"{begin + 5}.12"])
            put(inner / "info.txt", [".csv files in this archive:", "The first row is the time."])


def daily_and_sports(folder: Path) -> None:
    for activity in ("a01", "a02"):
        for person in ("p1", "p2"):
            for segment in range(1, 9):
                rows = [",".join(cells) for cells in values(125, 9)]
                put(folder / activity / person / f"s{segment:02d}.txt", rows)


def labels_beside(folder: Path, separator: str = ";") -> None:
    for person in ("ann", "bob"):
        rows = [f"{i / 50},{','.join(cells)}" for i, cells in enumerate(values(2000, 3))]
        put(folder / person / "acc.csv", ["t,x,y,z", *rows])
        names = [f"{10 * i}{separator}{('sit', 'walk')[i % 2]}" for i in range(4)]
        put(folder / person / "labels.csv", [f"t{separator}label", *names])


Writer = Callable[[Path], None]
