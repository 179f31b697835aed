"""Assembly of a source, a ring, labels and a recorder from the settings."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_client.data.recordings.resampling import Resampler, Stretch
from edge_client.live.labelling.label_file import LabelFile
from edge_client.live.labelling.labels import Labels, read_statement
from edge_client.live.labelling.page import LabelPage
from edge_client.live.labelling.questions import ModelView, Questions
from edge_client.live.recorder import Recorder
from edge_client.live.ring import Ring
from edge_client.live.samples import Source
from edge_client.live.settings import LiveSettings
from edge_client.live.sources.folder import FolderSource
from edge_client.live.sources.iio import IioSource
from edge_client.live.sources.mqtt import MqttSource
from edge_client.live.sources.readings import Readings
from edge_client.live.sources.stdin import StdinSource
from edge_client.live.store import LiveData, open_folder
from host.files import file_error, lock_folder, make_folder
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink

log = logging.getLogger("shoal.edge")

FOLDER = "live"
"""Name of the folder of live data in a state folder."""
DAY_S = 24 * 3600.0
RECORD_S = 2.0
"""Maximum length of a record; one stride if that is shorter."""


def open_source(
    settings: LiveSettings,
    folder: Path,
    client_id: str,
    on_label: Callable[[bytes], None] = lambda _payload: None,
    give_up: Callable[[], bool] = lambda: False,
) -> Source:
    """Return the source that the settings name.

    Args:
        settings: settings of live data.
        folder: folder in which the source may remember something.
        client_id: id of this client at the broker.
        on_label: function that takes labels of the broker.
        give_up: function that returns True if connecting is to end.

    Raises:
        ConfigError: the source cannot be used.
        LinkError: the broker refuses this client.
    """
    part, channels = settings.source, settings.window.channels

    def new_readings() -> Readings:
        return Readings(channels, part.addresses, part.rate_hz)

    match part.kind:
        case "stdin":
            return StdinSource(new_readings())
        case "folder":
            make_folder(folder)
            return FolderSource(
                Path(part.path),
                new_readings,
                folder / "read-files",
                part.rate_hz or settings.window.rate_hz,
            )
        case "iio":
            return IioSource(
                part.device,
                [part.addresses.get(c, c) for c in channels],
                part.rate_hz or settings.window.rate_hz,
                buffered=part.buffered,
            )
    if not part.topics:
        raise ConfigError("A source of kind mqtt needs topics")
    link = MqttLink(
        BrokerAddress.parse(part.broker), client_id, wait_s=None, give_up=give_up, persistent=False
    )
    return MqttSource(link, part.topics, new_readings(), settings.labels.topic, on_label)


@dataclass(frozen=True)
class Recording:
    """Parts of a recording: its recorder, which the caller has to run, its data and its labels."""

    recorder: Recorder
    data: LiveData
    labels: Labels


@contextlib.contextmanager
def recording(
    settings: LiveSettings,
    state: Path,
    client_id: str,
    stop: Callable[[], bool],
    model: ModelView,
) -> Iterator[Recording]:
    """Yield the parts of a recording, and close them afterwards.

    `model`: the model in use, for the page.

    Raises:
        ConfigError: something cannot be used, or another process records into this folder.
        LinkError: the broker refuses this client.
    """
    folder = state / FOLDER
    window, part = settings.window, settings.ring
    with contextlib.ExitStack() as stack:
        try:
            lock = lock_folder(folder)
        except BlockingIOError:
            raise ConfigError(
                f"live data {folder}: another process records there already"
            ) from None
        except OSError as error:
            raise ConfigError(file_error(f"live data {folder}", error)) from None
        stack.callback(os.close, lock)
        try:
            open_folder(folder, window.channels, window.rate_hz, part.block_s)
            labels = Labels(folder, window.classes)
            steps = max(1, min(window.stride, round(RECORD_S * window.rate_hz)))
            ring = Ring(
                folder,
                window.rate_hz,
                part.quota_bytes,
                part.retention_days * DAY_S,
                steps,
                spared=labels.has_any,
            )
        except OSError as error:
            raise ConfigError(file_error(f"live data {folder}", error)) from None
        stack.callback(ring.close)
        stack.enter_context(_label_sources(settings, labels, folder, stop, model))
        source = open_source(
            settings,
            folder,
            client_id,
            lambda payload: read_statement(payload, labels.wall(), labels),
            stop,
        )
        stack.callback(source.close)
        resampler = Resampler(len(window.channels), window.rate_hz, part.gap_s)
        recorder = Recorder(source, resampler, window.rate_hz, ring=ring, labels=labels)
        yield Recording(
            recorder, LiveData(folder, labels, settings.cut, settings.classes, part.look_s), labels
        )


def stretches(
    settings: LiveSettings,
    state: Path,
    client_id: str,
    stop: Callable[[], bool],
    take: Callable[[Stretch], None],
) -> None:
    """Hand the stretches of the source to `take` without storing anything.

    It ends if the source is over or `stop` returns True.

    Raises:
        ConfigError: the source cannot be used.
        LinkError: the broker refuses this client.
    """
    source = open_source(settings, state / FOLDER, client_id, give_up=stop)
    window = settings.window
    resampler = Resampler(len(window.channels), window.rate_hz, settings.ring.gap_s)
    try:
        Recorder(source, resampler, window.rate_hz, on_stretch=take).run(stop)
    finally:
        source.close()


@contextlib.contextmanager
def _label_sources(
    settings: LiveSettings,
    labels: Labels,
    folder: Path,
    stop: Callable[[], bool],
    model: ModelView,
) -> Iterator[None]:
    part, over = settings.labels, threading.Event()
    if (part.topic or part.file or part.page) and not settings.classes:
        raise ConfigError("Labels need classes: set --classes, classes in [window], or a bundle")
    if part.topic and settings.source.kind != "mqtt":
        raise ConfigError(
            "Labels on a topic come from the broker of the samples, so the source must be of kind "
            "mqtt"
        )
    page = None
    if part.page:
        questions = Questions(model, folder, labels, part.questions)
        page = LabelPage(part.page, labels, is_open=part.open_page, questions=questions)
    if part.file:
        LabelFile(Path(part.file), labels).start(lambda: over.is_set() or stop())
    try:
        yield
    finally:
        over.set()
        if page is not None:
            page.close()
