"""Live data of a device: samples and labels on disk, and the windows made from them.

The folder holds ``live.json`` (format of the samples and salt of the split, fixed when the folder
is created), the files of the ring, ``labels.jsonl``, ``question.json`` (the last question of the
page), and ``surveyed.npy`` (features of the last survey's data).
"""

import contextlib
import io
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import NAMED, TARGET, of_samples
from edge_client.live import drift
from edge_client.live.labelling.labels import Labels
from edge_client.live.ring import records_of, ring_files
from edge_client.live.split import HELD_OUT, TRAIN, sides
from host.files import make_folder, write_atomically
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import ConfigError, DataError

log = logging.getLogger("shoal.edge")

FILE, SURVEYED = "live.json", "surveyed.npy"
MOST_WINDOWS = 4096
"""Maximum number of windows for training, and of held-out ones; the newest are taken.

The limit bounds the memory that training needs.
"""


class Recorded(msgspec.Struct, frozen=True):
    """Format of the samples in a folder, and their split."""

    channels: tuple[str, ...]
    rate_hz: float
    block_s: float
    salt: str

    def __str__(self) -> str:
        return (
            f"channels {','.join(self.channels)} at {self.rate_hz:g} Hz in blocks of "
            f"{self.block_s:g} s"
        )


def open_folder(folder: Path, channels: Sequence[str], rate_hz: float, block_s: float) -> Recorded:
    """Create a folder, or open one that holds the same kind of samples.

    Raises:
        ConfigError: it holds samples of other channels, at another rate, or in blocks of another
            length.
        OSError: it cannot be written.
    """
    make_folder(folder)
    request = Recorded(tuple(channels), rate_hz, block_s, secrets.token_hex(8))
    if not (folder / FILE).exists():
        write_atomically(folder / FILE, msgspec.json.encode(request))
        return request
    recording = read_folder(folder)
    if (recording.channels, recording.rate_hz, recording.block_s) != (
        request.channels,
        request.rate_hz,
        request.block_s,
    ):
        raise ConfigError(
            f"live data {folder} hold {recording}, and the settings ask for {request}; use "
            "another folder, or remove this one"
        )
    return recording


def read_folder(folder: Path) -> Recorded:
    """Return the format of the samples in a folder.

    Raises:
        ConfigError: the folder holds no live data.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Recorded)
    except OSError as error:
        raise ConfigError(
            f"live data {folder}: {FILE}: {error.strerror}; `shoal-edge record` or `run --source` "
            "writes it"
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"live data {folder}: {FILE}: {error}") from None


@dataclass
class _Run:
    """Records that follow each other without a gap."""

    t0_s: float
    parts: list[Array]
    end_s: float


@dataclass(frozen=True)
class Cut:
    """Windows x (n, channels, time) of the ring, with their times, labels and sides.

    begins_s and ends_s (n,) are the times of the first and last samples. y holds classes (n,),
    classes of steps (n, steps), -1 without a label, or names or quantities (n, names). labelled
    (n,) marks the windows with a label. sides (n,) are the sides of the split.
    """

    x: Array
    begins_s: Array
    ends_s: Array
    y: Array
    labelled: Array
    sides: Array

    def of(self, chosen: Array) -> tuple[Array, Array]:
        """Return the newest `MOST_WINDOWS` of the chosen windows, and their labels."""
        at = np.flatnonzero(chosen)[-MOST_WINDOWS:]
        return np.ascontiguousarray(self.x[at], np.float32), self.y[at]


@dataclass(frozen=True)
class _Said:
    """Channels with the names or quantities of samples."""

    places: list[int]
    are_quantities: bool


class LiveData:
    """Live data as training and predictions see them.

    `now` is called between plans: the windows that it returned do not change.
    """

    def __init__(
        self,
        folder: Path,
        labels: Labels,
        window: Window,
        classes: Sequence[str],
        look_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a folder of live data.

        Args:
            folder: folder with live data.
            labels: labels of the folder.
            window: window to cut if no bundle says another.
            classes: classes if no bundle says others.
            look_s: interval between two tests for drift.
            clock: seconds since any fixed moment.

        Raises:
            ConfigError: the folder holds no live data.
        """
        self.folder, self._labels, self._window, self._classes = (
            folder,
            labels,
            window,
            tuple(classes),
        )
        self._recorded = read_folder(folder)
        self._look_s, self._clock, self._look_at_s = look_s, clock, clock() + look_s
        self._surveyed: Array | None = None
        with contextlib.suppress(OSError, ValueError, EOFError):
            rows: Array = np.load(folder / SURVEYED, allow_pickle=False)
            self._surveyed = rows if rows.ndim == 2 and len(rows) > 1 else None
        self.has_moved = False
        """True if the data have moved since the last survey, by the test of `look`."""

    def now(self, window: Window | None = None, classes: Sequence[str] | None = None) -> Windows:
        """Return the present windows: labelled for training, labelled and held out, and unlabelled.

        Raises:
            DataError: the window has other channels, or another rate, than the recording.
        """
        cut = self.cut(window, classes)
        train, held_out = (cut.labelled & (cut.sides == side) for side in (TRAIN, HELD_OUT))
        return Windows(
            *cut.of(train),
            *cut.of(held_out),
            cut.of(~cut.labelled & (cut.sides == TRAIN))[0],
            test_begins_s=cut.begins_s[held_out][-MOST_WINDOWS:],
        )

    def surveyed(self) -> None:
        """Remember the present data: later data are compared with them."""
        cut = self.cut()
        if len(cut.x) >= drift.FEWEST:
            newest_s = np.full((1, 2 * cut.x.shape[1]), cut.ends_s.max())
            self._surveyed = np.vstack([newest_s, drift.some(drift.features(cut.x))])
            buffer = io.BytesIO()
            np.save(buffer, self._surveyed)
            with contextlib.suppress(
                OSError
            ):  # without the file, a restart compares with the survey before
                write_atomically(self.folder / SURVEYED, buffer.getvalue())
        self.has_moved = False

    def look(self) -> bool:
        """Test for drift if it is due; return True if the data are now found to have moved.

        The windows since the last survey are compared with those of it, once there are as many.
        """
        if self._surveyed is None or self.has_moved or self._clock() < self._look_at_s:
            return False
        self._look_at_s = self._clock() + self._look_s
        newest_s, before = float(self._surveyed[0, 0]), self._surveyed[1:]
        cut = self.cut()
        new = np.flatnonzero(cut.begins_s > newest_s)[-drift.MOST :]
        if len(new) >= len(before) and before.shape[1] == 2 * cut.x.shape[1]:
            self.has_moved = drift.has_moved(before, drift.features(cut.x[new]))
        if self.has_moved:
            log.warning("The data have changed since the last survey, another is requested")
        return self.has_moved

    def cut(self, window: Window | None = None, classes: Sequence[str] | None = None) -> Cut:
        """Return all windows of the ring.

        Raises:
            DataError: the window has other channels, or another rate, than the recording.
        """
        window = window or self._window
        classes = classes or self._classes
        places, label_channels = self._places(window), self._said(classes)
        x, begins = [np.zeros((0, len(places), window.length), np.float32)], [np.zeros(0)]
        y = []
        if label_channels:
            kind = np.float32 if label_channels.are_quantities else np.int64
            y.append(np.zeros((0, len(label_channels.places)), kind))
        for run in _runs(self.folder, self._recorded):
            samples = np.concatenate(run.parts)
            starts = np.arange(0, len(samples) - window.length + 1, window.stride)
            if len(starts):
                views = np.lib.stride_tricks.sliding_window_view(samples, window.length, axis=0)[
                    starts
                ]
                x.append(views[:, places])
                y += (
                    [of_samples(views[:, label_channels.places], label_channels.are_quantities)]
                    if label_channels
                    else []
                )
                begins.append(run.t0_s + starts / self._recorded.rate_hz)
        begins_s = np.concatenate(begins)
        ends_s = begins_s + (window.length - 1) / self._recorded.rate_hz
        labels = np.concatenate(y) if label_channels else self._covering(begins_s, window, classes)
        labelled: Array = (
            np.full(len(labels), True)
            if label_channels
            else labels.reshape(len(labels), max(1, window.steps)).max(1) >= 0
        )
        return Cut(
            np.concatenate(x),
            begins_s,
            ends_s,
            labels,
            labelled,
            sides(begins_s, ends_s, self._recorded.block_s, self._recorded.salt),
        )

    def _said(self, names: Sequence[str]) -> _Said | None:
        """Return the channels with these names or quantities, None unless all are recorded."""
        channels = self._recorded.channels
        for begin in (TARGET, NAMED):
            if names and all(begin + name in channels for name in names):
                places = [channels.index(begin + name) for name in names]
                return _Said(places, begin == TARGET)
        return None

    def _covering(self, begins_s: Array, window: Window, classes: Sequence[str]) -> Array:
        """Return the classes of windows (n,), or of their steps (n, steps), by their begin."""
        steps, rate_hz = max(1, window.steps), self._recorded.rate_hz
        size = window.length // steps
        of_steps = begins_s[:, None] + np.arange(steps) * size / rate_hz
        y = self._labels.timeline.covering(
            of_steps.ravel(), (of_steps + (size - 1) / rate_hz).ravel(), classes
        )
        return y.reshape(-1, steps) if window.steps else y

    def _places(self, window: Window) -> list[int]:
        recording = self._recorded
        if missing := [name for name in window.channels if name not in recording.channels]:
            raise DataError(
                f"live data {self.folder}: the bundle needs channel {missing[0]!r}, and "
                f"{','.join(recording.channels)} are recorded"
            )
        if (
            window.height
            or window.vocabulary
            or (window.rate_hz and window.rate_hz != recording.rate_hz)
        ):
            requirement = (
                "images"
                if window.height
                else "ids"
                if window.vocabulary
                else f"{window.rate_hz:g} Hz"
            )
            raise DataError(
                f"live data {self.folder}: the bundle needs {requirement}, and samples are "
                f"recorded at {recording.rate_hz:g} Hz"
            )
        return [recording.channels.index(name) for name in window.channels]


def _runs(folder: Path, recorded: Recorded) -> Iterator[_Run]:
    """Yield the gap-free runs of samples in a ring, the oldest first."""
    run: _Run | None = None
    records = itertools.chain.from_iterable(map(records_of, ring_files(folder)))
    for record, _ in records:
        if record.rate_hz != recorded.rate_hz or record.x.shape[1] != len(recorded.channels):
            continue
        follows = (
            run is not None
            and not record.begins
            and abs(record.t0_s - run.end_s) * record.rate_hz < 0.5
        )
        if run is not None and follows:
            run.parts.append(record.x)
            run.end_s = record.end_s
            continue
        if run is not None:
            yield run
        run = _Run(record.t0_s, [record.x], record.end_s)
    if run is not None:
        yield run
