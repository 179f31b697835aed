"""Remarks about recordings that are read as they are, and may be meant in another way."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from edge_client.data.recordings.folders import sensor_in
from edge_client.data.recordings.repeats import copy_remark
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
SHOWN = 3
"""Number of remarks about samples that are shown, of as many files."""


def sensors_apart(scan: FolderScan) -> str:
    """Return a remark if recordings with the same channels are named by other sensors, else ""."""
    if scan.settings.recordings:
        return ""
    names = {sensor_in(s.name).lower(): s.name for s in scan.sources if len(s.files) == 1}
    are_named = len(names) > 1 and "" not in names
    pair, what = [*names.values()][:2] if are_named else [], "are named by other sensors"
    for (_, end, first), (again, until, second) in pairwise(sorted(scan.spans)):
        if not pair and min(end, until) - again > (until - again) / 2 and not scan.places:
            pair, what = sorted((first, second)), "are of the same time"
    if not pair:
        return ""
    first, second = pair
    return (
        f"{first} and {second} {what}, and have the same channels, so one is taken for samples at "
        "another time. If they are sensors of one recording, name the files alike but for the "
        "sensor, as walk_acc.csv and walk_gyr.csv. To take one: "
        + add_line(f"recordings = [{json.dumps(first, ensure_ascii=False)}]")
    )


def sample_remarks(scans: Mapping[str, FolderScan]) -> list[str]:
    """Return remarks about samples that come twice or in bursts, or columns that end early."""
    remarks, names = list[str](), dict[bytes, tuple[str, str]]()
    for device, scan in scans.items():
        remarks += scan.again
        for digest, name in scan.contents.items():
            other, first = names.setdefault(digest, (device, name))
            if other != device:
                pair = ((first, other), (name, device))
                remarks.append(copy_remark(*(n if n == d else f"{n} of {d}" for n, d in pair)))
    more = [f"{len(remarks) - SHOWN} more files have such samples"]
    return remarks[:SHOWN] + more * (len(remarks) > SHOWN)


def one_hot(scans: Iterable[FolderScan]) -> list[str]:
    """Return the columns of 0 and 1 in which most rows have one 1, and no row has two."""
    counts, both, of_all = Counter[str](), Counter[tuple[str, str]](), set[str]()
    for scan in scans:
        both.update(scan.flags)
        counts.update({name: facts.count for name, facts in scan.facts.items()})
        of_all |= {name for name in scan.facts if (name, name) not in scan.flags}
    groups = list[list[str]]()
    for name, count in counts.items():
        if name in of_all or not 0 < both[name, name] < count:
            continue
        fitting = (g for g in groups if not any(both[one, name] for one in g))
        if group := next(fitting, None):
            group.append(name)
        else:
            groups.append([name])
    rows = max(counts.values(), default=0)
    for group in groups:
        ones = sum(both[name, name] for name in group)
        if len(group) > 1 and (ones == rows or (len(group) > 2 and 2 * ones > rows)):
            return group
    return []


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
