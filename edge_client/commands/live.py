"""`shoal-edge record` and `shoal-edge predict --live`."""

import contextlib
import json
import logging
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge_client.commands.predict import reader_may_leave, told
from edge_client.core.questions import MOST_QUESTIONS, question_of
from edge_client.core.stream import Activity, StreamFilter
from edge_client.data.recordings.resampling import Stretch
from edge_client.live.follow import Cutter, follow_ring
from edge_client.live.recording import FOLDER, recording, stretches
from edge_client.live.settings import live_settings
from edge_client.live.store import read_folder
from edge_client.models.application import Model
from edge_client.models.description import ModelInUse
from edge_client.storage.state import DeviceState
from host.files import file_error
from wire.arrays.tensors import Array
from wire.errors import ConfigError, ShoalError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.tasks import CLASSIFICATION

log = logging.getLogger("shoal.edge")

Publish = Callable[[str], None]
SAVE_S = 60.0
"""Seconds between two writes of what the filter over the stream has learnt."""


def record(arguments: Namespace) -> int:
    """Record until the source ends, or until SIGTERM or Ctrl-C; return the exit status.

    The status is 1 if nothing was recorded.

    Raises:
        ShoalError: a setting cannot be used.
    """
    stop, model = stopping(), ModelInUse(DeviceState(arguments.state, read_only=True))
    settings = live_settings(arguments)
    with recording(settings, arguments.state, "shoal-record", stop, model) as parts:
        parts.recorder.run(stop)
        windows = parts.data.now()
        print(
            f"{parts.recorder}: {windows.num_train} training windows, {windows.num_test} held out, "
            f"{windows.num_unlabelled} without a label"
        )
        return 0 if parts.recorder.num_steps else 1


def predict_live(arguments: Namespace) -> int:
    """Answer each window of the live stream with the model in use; return the exit status.

    The stream is `--source`, or without it the recording of another process. It ends with SIGTERM
    or Ctrl-C. The status is 1 if a window could not be answered.

    Raises:
        ShoalError: no model is in use, or a setting cannot be used.
    """
    stop = stopping()
    model = Model(
        arguments.state,
        runtime=arguments.runtime,
        provider=arguments.provider,
        threads=arguments.threads,
        library=arguments.library,
    )
    status = 0
    with _publisher(arguments.publish) as publish:
        if arguments.source:
            settings = live_settings(arguments)
            rate_hz = settings.window.rate_hz
            cutter = _cutter(model, settings.window.channels, rate_hz)
        else:
            stream = read_folder(arguments.state / FOLDER)
            rate_hz = stream.rate_hz
            cutter = _cutter(model, stream.channels, rate_hz)
        lag = None if arguments.stream == "off" else arguments.lag
        is_recorded = not arguments.source  # only then a label has samples
        answers = LiveAnswers(model, arguments.state, rate_hz, lag, is_recorded)

        def say(lines: Iterator[dict[str, Any]]) -> None:
            nonlocal status
            for line in lines:
                status |= "error" in line
                publish(json.dumps(line))

        def take(stretch: Stretch) -> None:
            for begin_s, x in cutter.cut(stretch):
                say(answers.of(begin_s, x))

        if arguments.source:
            stretches(settings, arguments.state, "shoal-predict", stop, take)
        else:
            for stretch in follow_ring(arguments.state / FOLDER, rate_hz, stop):
                take(stretch)
        say(answers.end())
    return status


class LiveAnswers:
    """Answers of the model in use to live windows, as JSON objects with the time of each window.

    Classes of windows that follow each other are filtered (`edge_client.core.stream`).
    """

    def __init__(
        self, model: Model, state: Path, rate_hz: float, lag: int | None, is_recorded: bool = True
    ) -> None:
        """Start before the first window.

        Args:
            model: model in use.
            state: state folder, which keeps what the filter learns, and the stretches to ask about.
            rate_hz: samples per second of the stream.
            lag: number of later windows that an answer waits for. None: without a filter.
            is_recorded: True if the windows are stored, so that a label of their time has a use.
        """
        self._model, self._rate_hz, self._lag = model, rate_hz, lag
        self._is_recorded = is_recorded
        self._state = DeviceState(state, read_only=True)
        self._filter: StreamFilter | None = None
        self._classes: tuple[str, ...] = ()
        self._save_at_s = 0.0

    def of(self, begin_s: float, x: Array) -> Iterator[dict[str, Any]]:
        """Yield the answers that a window x (channels, time) allows."""
        try:
            p = self._model.predict(x[None])[0]
        except ShoalError as error:
            yield from self.end()
            yield {"t": round(begin_s, 3), "error": str(error)}
            return
        model = self._model
        if self._filter is not None and self._filter.sums.bundle != model.current.bundle:
            yield from self.end()
            self._filter = None
        if self._lag is None or model.task != CLASSIFICATION:
            yield {"t": round(begin_s, 3)} | told(model.task, model.classes, p)
            return
        if self._filter is None:
            sums = self._state.stream(model.current.bundle)
            step_s = model.window.stride / self._rate_hz
            self._filter = StreamFilter(sums, step_s, self._lag, self._ask_about)
            self._classes = model.classes
        yield from self._lines(self._filter.answer(begin_s, p))
        if time.monotonic() >= self._save_at_s:
            self._save()

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the answers that still wait for later windows, and store what was learnt."""
        if self._filter is not None:
            yield from self._lines(self._filter.end())
            self._save()

    def _lines(self, answers: Iterator[tuple[float, Array]]) -> Iterator[dict[str, Any]]:
        for begin_s, row in answers:
            yield {"t": round(begin_s, 3)} | told(CLASSIFICATION, self._classes, row)

    def _ask_about(self, activity: Activity) -> None:
        """Store a long stretch, about which the page may ask. If that fails, it asks of others."""
        assert self._filter is not None
        length_s = self._model.window.length / self._rate_hz
        question = question_of(activity, self._filter.sums, self._classes, length_s)
        if question is not None and self._is_recorded:
            with contextlib.suppress(OSError):
                stretches = (*self._state.questions(), question)[-MOST_QUESTIONS:]
                self._state.put_questions(stretches)

    def _save(self) -> None:
        """Store what was learnt; if that fails, it lasts as long as this process."""
        assert self._filter is not None
        self._save_at_s = time.monotonic() + SAVE_S
        with contextlib.suppress(OSError):
            self._state.put_stream(self._filter.sums)


def stopping() -> Callable[[], bool]:
    """Return a function that is True after SIGTERM or SIGINT. It replaces their handlers."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: signals.append(signum))
    return lambda: bool(signals)


def _cutter(model: Model, channels: tuple[str, ...], rate_hz: float) -> Cutter:
    window = model.window
    if missing := [name for name in window.channels if name not in channels]:
        raise ConfigError(
            f"The model needs channel {missing[0]!r}, and the live stream has {', '.join(channels)}"
        )
    if window.height or window.rate_hz not in (0.0, rate_hz):
        raise ConfigError(
            f"The model needs {'images' if window.height else f'{window.rate_hz:g} Hz'}, and the "
            f"live stream has {rate_hz:g} Hz"
        )
    return Cutter(
        window.length, window.stride, rate_hz, [channels.index(name) for name in window.channels]
    )


@contextlib.contextmanager
def _publisher(target: str | None) -> Iterator[Publish]:
    """Open the target of the answers and yield a function that publishes a line.

    The target is standard output, a topic (``mqtt://HOST/TOPIC``), or a Unix socket
    (``unix:PATH``), which sends to every connected listener.

    Raises:
        ConfigError: the target is of another form, or the socket cannot be opened.
    """
    if not target:
        yield _say
    elif target.startswith(("mqtt://", "mqtts://")):
        broker, _, topic = target.partition("://")[2].partition("/")
        if not topic:
            raise ConfigError("--publish must have a topic: mqtt://HOST[:PORT]/TOPIC")
        link = MqttLink(
            BrokerAddress.parse(f"{target.partition('://')[0]}://{broker}"),
            "shoal-answers",
            persistent=False,
        )
        try:
            yield lambda line: link.publish(topic, line.encode())
        finally:
            link.close()
    elif target.startswith("unix:"):
        with _unix_socket(Path(target[5:])) as publish:
            yield publish
    else:
        raise ConfigError(
            f"--publish must be mqtt://HOST[:PORT]/TOPIC or unix:PATH, got {target!r}"
        )


def _say(line: str) -> None:
    with reader_may_leave():
        print(line)


@contextlib.contextmanager
def _unix_socket(path: Path) -> Iterator[Publish]:
    """Open a Unix socket and yield a function that sends a line to every connected listener.

    The socket's user and group may connect. A listener that does not read is dropped.
    """
    opened, listeners = socket.socket(socket.AF_UNIX), list[socket.socket]()
    try:
        if path.is_socket():  # left by a process that was killed
            path.unlink()
        opened.bind(str(path))
        path.chmod(0o660)
        opened.listen()
    except OSError as error:
        raise ConfigError(file_error(f"--publish unix:{path}", error)) from None
    opened.setblocking(False)

    def publish(line: str) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                listener, _ = opened.accept()
                listener.setblocking(False)
                listeners.append(listener)
        for listener in list(listeners):
            try:
                if listener.send(line.encode() + b"\n") < len(line) + 1:
                    raise BlockingIOError
            except OSError:
                listeners.remove(listener)
                listener.close()

    try:
        yield publish
    finally:
        for each in (*listeners, opened):
            each.close()
        path.unlink(missing_ok=True)
