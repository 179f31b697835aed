"""Remarks about recordings that are read as they are, and may be meant in another way."""

import json
from collections import Counter
from collections.abc import Iterable

from edge_client.data.recordings.folders import sensor_in
from edge_client.data.recordings.scanning import FolderScan
from edge_client.data.tables.parts import add_line, class_line

NO_ACTIVITY = frozenset(
    (
        *("0", "other", "others", "unknown", "undefined", "unlabeled", "unlabelled", "transition"),
        *("transient", "background", "nothing", "no activity", "no_activity", "undefiniert"),
    )
)
"""Labels that may stand for rows without an activity, in lower case."""
BETWEEN = 0.9
"""Share of the changes of a label that begin or end with one class, from which this class is
between the others."""
FEWEST_CHANGES = 8


def sensors_apart(scan: FolderScan) -> str:
    """Return a remark if recordings with the same channels are named by other sensors, else ""."""
    names = {sensor_in(s.name).lower(): s.name for s in scan.sources if len(s.files) == 1}
    if len(names) < 2 or "" in names or scan.settings.recordings:
        return ""
    first, second = list(names.values())[:2]
    return (
        f"{first} and {second} are named by other sensors, and have the same channels, so one is "
        "taken for samples at another time. If they are sensors of one recording, name the files "
        "alike but for the sensor, as walk_acc.csv and walk_gyr.csv. To take one: "
        + add_line(f"recordings = [{json.dumps(first, ensure_ascii=False)}]")
    )


def between(scans: Iterable[FolderScan]) -> list[str]:
    """Return a remark about a class between most others, if its label may be of no activity."""
    changes = Counter[str]()
    for scan in scans:
        names = {number: text for text, number in scan.numbers.items()}
        changes.update({names[number]: count for number, count in scan.changes.items()})
    total = sum(changes.values()) / 2
    return [
        f"class {text!r} is between most of the others, as rows without an activity are. If it is "
        f"none: {add_line(class_line(text, ''))}"
        for text, count in changes.items()
        if text.lower() in NO_ACTIVITY
        and len(changes) > 2
        and total >= FEWEST_CHANGES
        and count >= BETWEEN * total
    ]
