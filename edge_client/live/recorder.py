"""Recorder, which moves samples from a source to the ring as long as the process lasts."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from edge_client.data.recordings.resampling import Resampler, Samples, Stretch
from edge_client.live.labelling.labels import LONGEST_LABEL, Labels
from edge_client.live.ring import Ring, ring_files, span
from edge_client.live.samples import Source
from edge_client.live.sources.tally import Tally
from wire.errors import DataError

log = logging.getLogger("shoal.edge")

WAIT_S = 0.25
AHEAD_S = 24 * 3600.0
"""Largest lead of a sample's time over this machine's clock; later samples are not recorded."""
JOIN_S = 10.0
REPORT_S = 600.0
"""Interval between two log lines about the progress."""


class Recorder:
    """Reader of one source, which resamples it and hands on the stretches.

    They go to the ring, if there is one, and to `on_stretch`. A fault in some input loses only that
    input.
    """

    def __init__(
        self,
        source: Source,
        resampler: Resampler,
        rate_hz: float,
        *,
        ring: Ring | None = None,
        labels: Labels | None = None,
        on_stretch: Callable[[Stretch], None] = lambda _stretch: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._resampler, self._rate_hz = source, resampler, rate_hz
        self._ring, self._labels, self._on_stretch = ring, labels, on_stretch
        self._wall = wall
        self._lost, self._ahead = (
            Tally("samples of the source"),
            Tally("samples ahead of the clock"),
        )
        self._num_ahead = 0
        self._unknown: set[str] = set()
        self._open: tuple[str, float, float] | None = None
        self.num_steps = 0

    def run(self, stop: Callable[[], bool]) -> None:
        """Record until `stop` returns True or the source is over."""
        said_s = time.monotonic()
        try:
            while not stop() and not self._source.is_over:
                try:
                    for samples in self._source.read(WAIT_S):
                        self.take(samples)
                    if time.monotonic() - said_s >= REPORT_S:
                        said_s = time.monotonic()
                        log.debug("%s", self)
                        self._forget_labels()
                except Exception as error:
                    self._lost.add(error)
                    self._resampler.begin_anew()
                    time.sleep(WAIT_S)
            self._hand_on(self._resampler.flush())
        finally:
            self._say_labels()
            if self._ring is not None:
                self._ring.sync()
        log.info("%s", self)

    @contextlib.contextmanager
    def at_work(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Record in a separate thread while the context lasts."""
        over = threading.Event()
        thread = threading.Thread(
            target=self.run, args=(lambda: over.is_set() or stop(),), name="recorder", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(JOIN_S)

    def take(self, samples: Samples) -> None:
        """Record these samples."""
        if (is_ahead := samples.t > self._wall() + AHEAD_S).any():
            self._num_ahead += int(is_ahead.sum())
            self._ahead.add(
                f"times up to {samples.t.max() - self._wall():.0f} s ahead of this machine's "
                f"clock, and at most {AHEAD_S:.0f} s are recorded; are its clock and the sensor's "
                "set?"
            )
            indexes = np.flatnonzero(~is_ahead)
            samples = Samples(
                samples.t[indexes],
                samples.values[indexes],
                tuple(samples.labels[i] for i in indexes) if samples.labels else (),
            )
        if samples.labels and self._labels is not None:
            self._take_labels(samples.t, samples.labels)
        self._hand_on(self._resampler.push(samples))

    def __str__(self) -> str:
        lost = self._ring.num_lost if self._ring is not None else 0
        ignored, late = (
            self._source.ignored.count + self._lost.count + self._num_ahead,
            self._resampler.num_late,
        )
        return f"Recorded: steps={self.num_steps} lost={lost} late={late} ignored={ignored}"

    def _hand_on(self, stretches: Iterable[Stretch]) -> None:
        for stretch in stretches:
            self.num_steps += len(stretch.x)
            if self._ring is not None:
                self._ring.append(stretch)
            self._on_stretch(stretch)

    def _take_labels(self, t: np.ndarray, labels: Sequence[str]) -> None:
        """Store labels that come with samples.

        A label lasts from its sample to the next one, and for one step after the last.
        """
        for at_s, label in zip(t.tolist(), labels, strict=True):
            if (
                self._open is not None
                and self._open[0] == label
                and 0 <= at_s - self._open[2] < 2.0
            ):
                self._open = (label, self._open[1], at_s)
                continue
            self._say_labels()
            self._open = (label, at_s, at_s) if label else None
        if self._open is not None and self._open[2] - self._open[1] > 10.0:
            label, _, end_s = self._open
            self._say_labels()
            self._open = (label, end_s, end_s)

    def _forget_labels(self) -> None:
        """Forget the labels of samples that were removed from the ring."""
        if (
            self._labels is None
            or self._ring is None
            or not (paths := ring_files(self._ring.folder))
        ):
            return
        try:
            self._labels.forget(span(paths[0])[0])
        except OSError as error:
            log.error("Old labels not removed: %s", error.strerror)

    def _say_labels(self) -> None:
        if self._open is None or self._labels is None:
            return
        label, begin_s, end_s = self._open
        self._open = None
        try:
            self._labels.say(label, begin_s, end_s + 1 / self._rate_hz, durable=False)
        except DataError as error:
            if label[:LONGEST_LABEL] not in self._unknown and len(self._unknown) < 100:
                self._unknown.add(label[:LONGEST_LABEL])
                log.warning("Label ignored: %s", error)
        except OSError as error:
            log.error("Label not stored: %s", error.strerror)
