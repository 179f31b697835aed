"""Small folders whose layout says little: each writes one, and returns names of persons in it."""

from collections.abc import Callable
from pathlib import Path

from tests.support.layouts import put, values

ROWS = [f"{i / 50},{','.join(c)}" for i, c in enumerate(values(300, 2))]


def files(folder: Path, *names: str, more: str = "", cells: str = "") -> None:
    """Recordings of a time and two channels, and a column whose cells are those of their names."""
    for name in names:
        cell = f",{cells.format(*name.replace('/', '_').split('_'))}" if cells else ""
        put(folder / f"{name}.csv", [f"t,x,y{more}", *(f"{row}{cell}" for row in ROWS)])


def _of(*names: str, persons: str = "", **more: str) -> Callable[[Path], set[str]]:
    def write(folder: Path) -> set[str]:
        files(folder, *names, **more)
        return {*persons.split()}

    return write


LAYOUTS: dict[str, Callable[[Path], set[str]]] = {
    "files of persons": _of("anna_1", "anna_2", "ben_1", "ben_2", persons="anna ben"),
    "files of persons in one folder": _of("d/anna_1", "d/ben_1", "d/ben_2", persons="anna ben"),
    "folders of persons": _of("anna/rec_1", "anna/rec_2", "ben/rec_1", persons="anna ben"),
    "folders of days": _of("day1/anna", "day1/ben", "day2/anna", "day2/ben", persons="anna ben"),
    "codes of persons": _of("sub01", "sub02", "sub03", persons="sub01 sub02 sub03"),
    "numbers": _of("1", "2", "3", persons="1 2 3"),
    "persons and activities": _of(
        *("anna_walk", "anna_sit", "ben_walk", "ben_sit", "ben_garden"), persons="anna ben garden"
    ),
    "a column of persons": _of(
        "all/anna_1", "all/anna_2", "all/ben_3", more=",who", cells="{1}", persons="anna ben"
    ),
    "a column of activities": _of(
        "ann/walk_1",
        "ann/sit_1",
        "bob/walk_1",
        "bob/sit_2",
        more=",was",
        cells="{1}",
        persons="ann bob",
    ),
    "folders by activity": _of(
        *(f"{a}/{p}_{k}" for a in ("Walk", "Sit", "Pick") for p in (1001, 1002) for k in "AB"),
        persons="1001 1002",
    ),
    "folders with numbers": _of(
        *(f"{a}/{k}" for a in ("01_alpha", "02_beta") for k in range(3)), persons="0 1 2"
    ),
    "folders of an activity each": _of("walking/a", "sitting/b", "running/c", persons="a b c"),
}
