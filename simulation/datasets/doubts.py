"""Warnings about usable data that are probably a mistake.

The mistakes are labels of one class, and devices whose numbers are in other units.
"""

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from edge_client.data.array_store import blocks
from edge_client.data.labels import has_classes
from edge_client.data.recordings.folders import POSITIONS, SENSORS, person_in
from edge_client.data.tables.parts import add_line, class_line, labels_line
from edge_client.data.tables.roles import ACTIVITY, is_activity
from simulation.datasets.owners import PERSON_LINE, classes_of_folders
from simulation.datasets.windows import SAMPLED, FleetData
from wire.arrays.tensors import Array
from wire.tasks import NO_LABEL

TIMES = 30.0
"""Factor from the median device's channel beyond which a channel is likely in another unit."""
SHOWN = 3
_NO_CLASS = re.compile(
    rf"{SENSORS.pattern}|{POSITIONS.pattern}|sub|subj|subject|user|person|participant|volunteer|"
    r"proband|patient|data|recording|rec|session|trial|raw|log",
    re.IGNORECASE,
)
"""Word in the name of a recording that names no class."""
_PERSON_ID = re.compile(r"[a-z]{0,2}[\W_]*\d+", re.IGNORECASE)
MOST_COLUMNS = 8
"""Maximum number of columns of labels that may be a class, a person and the like."""
MOST_NAMES = 64
"""Maximum number of names of recordings in a warning."""


def doubts(data: FleetData, of_classes: bool = True) -> list[str]:
    """Return the warnings about data, a text each.

    `of_classes`: True if the task has classes.
    """
    some = data.some(SAMPLED)
    warnings = [f"data {data.name}: {remark}" for remark in remarks_of(data)]
    if of_classes:
        warnings += [alike_classes(data), few_classes(data), one_part(some), no_label(data)]
    return [text for text in (*warnings, no_steps(some), other_units(some)) if text]


def remarks_of(data: FleetData) -> list[str]:
    """Return the decisions about recordings that may be wrong, a text each."""
    if data.reading is None:
        return []
    remarks = list(data.reading.remarks)
    gaps = data.reading.gaps
    empty = [d for d, w in data.devices.items() if not w.num_train + w.num_test + w.num_unlabelled]
    if empty:
        because = f", whose recordings have {gaps[empty[0]]} gaps" if gaps.get(empty[0]) else ""
        remarks.append(f"{len(empty)} devices have no window, such as {empty[0]}{because}")
    return remarks


def _classes_by_name(names: Sequence[str]) -> dict[str, str]:
    """Return likely classes of recordings by patterns of their names.

    Words that are in all names do not count. A class is the first word that names an activity.
    Without activities, it is all words that name no person, sensor or place on a body.
    """
    words_of = {name: re.findall(r"[^\W\d_]+", name) for name in names}
    in_all = set.intersection(*map(set, words_of.values())) if len(names) > 1 else set()
    patterns = dict[str, str]()
    for name, words in words_of.items():
        word = next((w for w in words if ACTIVITY.match(w) and w not in in_all), "")
        if word:
            patterns[f"{word}*" if name.startswith(word) else f"*{word}*"] = word
    others = {
        name: [w for w in words if w not in in_all and len(w) > 1 and not _NO_CLASS.fullmatch(w)]
        for name, words in words_of.items()
    }
    if not patterns and all(others.values()):
        patterns = {f"*{'*'.join(words)}*": "_".join(words) for words in others.values()}
    parents = [name.split("/")[-2] for name in names if "/" in name]
    classes = {re.sub(r"^\d+[\W_]*|[\W_]*\d+$", "", folder) for folder in parents}
    has_others = len(parents) == len(names) and not all(map(is_activity, names))
    if has_others and len(classes - {""}) > 1 and any(map(is_activity, classes)):
        patterns = {f"*{word}*/*": word for word in classes - {""}}

    def order(pattern: str) -> tuple[int, str]:
        """Return the place of a pattern, behind those whose names it would match too."""
        return sum(patterns[pattern] in word for word in patterns.values()), pattern

    return {pattern: patterns[pattern] for pattern in sorted(patterns, key=order)}


def no_label(data: FleetData) -> str:
    """Return a warning if nothing says the classes of recordings, else ""."""
    if (
        data.reading is None
        or data.classes
        or not any(w.num_unlabelled for w in data.devices.values())
    ):
        return ""
    names = data.reading.recordings
    classes = data.reading.folders or _classes_by_name(names)
    are_folders = not {*names} <= {*data.devices}
    count = len({*classes.values()})
    is_clear = bool(data.reading.folders) or any(map(is_activity, classes.values()))
    if not is_clear and not 1 < count < len(names) + are_folders:
        are_persons = any(person_in(d) or _PERSON_ID.fullmatch(d) for d in data.devices)
        has_words = are_folders and not are_persons and len(data.devices) > 1
        classes = classes_of_folders(data.devices) if has_words else {}
    line = labels_line(dict(list(classes.items())[:MOST_NAMES]))
    if not is_clear:
        return (
            f"data {data.name}: no column is the label, and no recording is named by an activity. "
            "Add a column of classes, or say the class of whole recordings in [labels] of "
            "shoal.toml by patterns of their names, such as "
            + (f"{line}, if these words are classes" if classes else repr(names[0]))
        )
    return (
        f"data {data.name}: no column is the label. For the classes of whole recordings, by their "
        f"names: {add_line(line)}"
    )


def one_part(data: FleetData) -> str:
    """Return a warning if a class has windows for training or for testing alone, else "".

    It is empty if labels are not classes.
    """
    if data.reading is None or not has_classes(data.sample()[1]):
        return ""
    train, test = (
        {int(label) for y in labels for label in np.unique(y)}
        for labels in zip(*((w.train_y, w.test_y) for w in data.devices.values()), strict=True)
    )
    texts = [
        f"{', '.join(data.classes[i] for i in sorted(here - there))} {what}"
        for here, there, what in (
            (train, test, "has no test window on any device"),
            (test, train, "has test windows alone, so it cannot be learned"),
        )
        if here - there
    ]
    return f"data {data.name}: class {'; class '.join(texts)}" if texts else ""


def alike_classes(data: FleetData) -> str:
    """Return a warning if names of classes differ only in case or spaces, else ""."""
    first = dict[str, str]()
    for name in data.classes:
        other = first.setdefault("".join(name.lower().split()), name)
        if other != name:
            return (
                f"data {data.name}: classes {other!r} and {name!r} are taken for two. If they are "
                f"one: {add_line(class_line(name, other))}"
            )
    return ""


def few_classes(data: FleetData) -> str:
    """Return a warning if windows have no class, one for all, or one for each device, else "".

    It is empty if labels are not classes.
    """
    if not has_classes(data.sample()[1]):
        return ""
    classes = {d: np.unique(w.train_y).tolist() for d, w in data.devices.items()}
    each = {data.classes[number] for numbers in classes.values() for number in numbers}
    if len(each) == 1:
        return (
            f"data {data.name}: all training examples are of class {each.pop()}, so there is "
            "nothing to learn"
        )
    if data.reading is None:
        return ""
    if data.classes and not any(w.num_train + w.num_test for w in data.devices.values()):
        return (
            f"data {data.name}: no window has one of the classes "
            f"{', '.join(data.classes[:SHOWN])}. Labels from a file beside the samples need times "
            "by the clock of the samples"
        )
    if not each or any(len(numbers) != 1 for numbers in classes.values()):
        return ""
    named = (f"{d} has {data.classes[number]}" for d, (number,) in classes.items())
    return (
        f"data {data.name}: each device has one class alone ({', '.join(islice(named, SHOWN))}). "
        "If folders or files are classes and not devices, put a column of persons into the "
        f"recordings, or say where the person is in their names: {add_line(PERSON_LINE)}"
    )


def no_steps(data: FleetData) -> str:
    """Return a warning if columns of labels are steps, and say different things, else "".

    Neighbouring steps of a window mostly have the same class; a class and a person have not.
    """
    steps = data.window.steps if data.reading is None else 0
    if not 0 < steps <= MOST_COLUMNS:
        return ""
    y = np.concatenate([w.train_y for w in data.devices.values()])
    has_both = (y[:, 1:] != NO_LABEL) & (y[:, :-1] != NO_LABEL)
    alike = ((y[:, 1:] == y[:, :-1]) & has_both).sum(0)
    if (2 * alike >= has_both.sum(0)).all():
        return ""
    return (
        f"data {data.name}: the {steps} columns of y are taken for the classes of {steps} steps of "
        "a window, and seldom agree, as a class and a person. If they are these, give one column "
        "as y, such as y[:, 0], and the person as subject (in Python owner)"
    )


def other_units(data: FleetData) -> str:
    """Return a warning about devices whose numbers seem to be in other units than the others'.

    It is empty if there are none. A fleet's model takes a channel in units of its root mean square
    over all devices. So a device that measures in thousandths of the others' unit makes the inputs
    of all others nearly zero.
    """
    if data.window.vocabulary:
        return ""
    sizes = {  # root mean square per channel (channels,) float64
        d: np.sqrt(_squares(x) / (x.size // x.shape[1]))
        for d, w in data.devices.items()
        if len(x := w.train_x if w.num_train else w.unlabelled_x)
    }
    if len(sizes) < 3:
        return ""
    every = np.stack(list(sizes.values()))
    usual = np.median(every, axis=0)
    is_positive = (every > 0) & (usual > 0)
    times = np.where(is_positive, every / np.where(usual > 0, usual, 1), 1.0)
    far = (times > TIMES) | (times < 1 / TIMES)
    lines = [
        (
            f"channel {data.window.channels[channel]} of device {device_id} is "
            f"{times[at, channel]:.2g} times that of the median device"
        )
        for at, device_id in enumerate(sizes)
        for channel in np.flatnonzero(far[at])
    ]
    if not lines:
        return ""
    more = f", and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return (
        f"data {data.name}: {'; '.join(lines[:SHOWN])}{more} (root mean squares). Are all devices "
        "in the same unit?"
    )


def _squares(x: Array) -> Array:
    """Return the sum of squares per channel of windows x (n, channels, \\*sides)."""
    axes = (0, *range(2, x.ndim))
    return sum(
        (np.square(x[at], dtype=np.float64).sum(axes) for at in blocks(x)), np.zeros(x.shape[1])
    )
