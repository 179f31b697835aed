"""`shoal-edge record` and `shoal-edge predict --live`."""

import contextlib
import json
import logging
import signal
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge_client.commands.predict import reader_may_leave, told
from edge_client.data.resampling import Stretch
from edge_client.live.follow import Cutter, follow_ring
from edge_client.live.recording import FOLDER, recording, stretches
from edge_client.live.settings import live_settings
from edge_client.live.store import read_folder
from edge_client.models.application import Model
from wire.errors import ConfigError, ShoalError
from wire.links.mqtt import BrokerAddress, MqttLink

log = logging.getLogger("shoal.edge")

Publish = Callable[[str], None]


def record(arguments: Namespace) -> int:
    """Record until the source ends, or until SIGTERM or Ctrl-C; return the exit status.

    The status is 1 if nothing was recorded.

    Raises:
        ShoalError: a setting cannot be used.
    """
    stop = stopping()
    with recording(live_settings(arguments), arguments.state, "shoal-record", stop) as parts:
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

        def answer(begin_s: float, x: Any) -> None:
            nonlocal status
            line = {"t": round(begin_s, 3)}
            try:
                row = model.predict(x[None])[0]
            except ShoalError as error:
                status = 1
                publish(json.dumps(line | {"error": str(error)}))
                return
            publish(json.dumps(line | told(model.task, model.classes, row)))

        if arguments.source:
            settings = live_settings(arguments)
            cutter = _cutter(model, settings.window.channels, settings.window.rate_hz)

            def take(stretch: Stretch) -> None:
                for begin_s, x in cutter.cut(stretch):
                    answer(begin_s, x)

            stretches(settings, arguments.state, "shoal-predict", stop, take)
        else:
            stream = read_folder(arguments.state / FOLDER)
            cutter = _cutter(model, stream.channels, stream.rate_hz)
            for stretch in follow_ring(arguments.state / FOLDER, stream.rate_hz, stop):
                for begin_s, x in cutter.cut(stretch):
                    answer(begin_s, x)
    return status


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
        raise ConfigError(f"--publish unix:{path}: {error.strerror or error}") from None
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
