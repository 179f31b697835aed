"""Settings of live data, from a TOML file or a few options."""

import argparse
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from edge_client.data.labels import NAMED, TARGET, is_said
from host.files import file_error
from wire.bundle import Window, unpack
from wire.errors import ConfigError

More = Annotated[float, msgspec.Meta(gt=0)]


class WindowPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows and channels that are recorded.

    `bundle` is the path of a bundle that sets everything except the label channels, ``label.NAME``
    and ``target.NAME``. `shoal export` writes it.
    """

    channels: tuple[str, ...] = ()
    rate_hz: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    length: Annotated[int, msgspec.Meta(ge=2)] = 128
    stride: Annotated[int, msgspec.Meta(ge=1)] = 64
    steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of equal parts of a window with a class each; 0 if the window has one class."""
    classes: tuple[str, ...] = ()
    bundle: str = ""


class SourcePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of the samples."""

    kind: Literal["stdin", "folder", "mqtt", "iio"]
    path: str = ""
    """Path of the folder, for the kind folder."""
    broker: str = "mqtt://localhost"
    topics: tuple[str, ...] = ()
    device: str = "0"
    """Number of the device or name of its driver, for the kind iio."""
    buffered: bool = True
    rate_hz: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Rate of samples without a time stamp; 0 if unknown."""
    addresses: dict[str, str] = {}
    """Addresses of the values by channel, for channels that are not found by their own name."""


class RingPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Storage of the samples."""

    quota_bytes: Annotated[int, msgspec.Meta(ge=2**16)] = 64 * 2**20
    retention_days: More = 30.0
    block_s: More = 60.0
    """Length of a block of time in seconds. One of five consecutive blocks is held out."""
    gap_s: More = 0.5
    look_s: More = 300.0
    """Interval between two tests for drift."""


class LabelsPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sources of the labels."""

    topic: str = ""
    file: str = ""
    page: str = ""
    """HOST:PORT of the page with buttons; empty for no page."""
    open_page: bool = False
    """True permits a page that other machines can reach. The page has no password."""
    questions: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Maximum number of questions that the page asks a day; 0 for none."""


class LiveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of live data."""

    source: SourcePart
    window: WindowPart = WindowPart()
    ring: RingPart = RingPart()
    labels: LabelsPart = LabelsPart()

    @property
    def cut(self) -> Window:
        """Shape and rate of an example."""
        part = self.window
        return Window(
            tuple(name for name in part.channels if not is_said(name)),
            part.length,
            part.stride,
            part.rate_hz,
            steps=part.steps,
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of the label channels if there are no classes."""
        return self.window.classes or tuple(
            name.partition(".")[2] for name in self.window.channels if is_said(name)
        )


def live_settings(arguments: argparse.Namespace) -> LiveSettings:
    """Return the settings of `--source` and of the options that go with it.

    Options take precedence over the file.

    Raises:
        ConfigError: the settings cannot be used, or do not say what is recorded.
    """
    text: str = arguments.source
    settings = _from_file(Path(text)) if text.endswith(".toml") else LiveSettings(_short(text))
    text = re.sub("//.*@", "//", text)  # a password stays out of errors
    replace = msgspec.structs.replace
    window = settings.window
    named = {
        "channels": _words(arguments.channels),
        "classes": _words(arguments.classes),
        "rate_hz": arguments.rate,
    }
    sizes = {
        "length": getattr(arguments, "window", None),
        "stride": getattr(arguments, "stride", None),
        "steps": getattr(arguments, "steps", None),
    }
    window = replace(
        window,
        **{k: v for k, v in (named | sizes).items() if v},
        **({"bundle": str(arguments.bundle)} if arguments.bundle else {}),
    )
    window = _from_bundle(window)
    if not window.channels or not window.rate_hz > 0:
        raise ConfigError(
            f"--source {text} needs channels and a rate; set --channels and --rate, [window] in a "
            "TOML file, or --bundle"
        )
    if len(set(window.channels)) < len(window.channels):
        raise ConfigError(
            f"--source {text}: channels must be different, got {','.join(window.channels)}"
        )
    kinds = [
        begin
        for begin in (NAMED, TARGET)
        if any(name.startswith(begin) for name in window.channels)
    ]
    if len(kinds) > 1 or (kinds and window.steps):
        what = "steps" if window.steps else " and ".join(f"{begin}NAME" for begin in kinds)
        raise ConfigError(
            f"--source {text}: labels must be of one kind, got {what} in channels "
            f"{','.join(window.channels)}"
        )
    if not any(not is_said(name) for name in window.channels):
        raise ConfigError(
            f"--source {text}: channels {','.join(window.channels)} are all labels; add channels "
            "of samples"
        )
    if window.steps and window.length % window.steps:
        raise ConfigError(
            f"--source {text}: steps must divide the {window.length} samples of a window, got "
            f"{window.steps}"
        )
    labels = replace(settings.labels, page=arguments.page) if arguments.page else settings.labels
    if unknown := settings.source.addresses.keys() - set(window.channels):
        raise ConfigError(
            f"--source {text}: there is an address for {min(unknown)!r}, which is not one of the "
            f"channels {', '.join(window.channels)}"
        )
    return replace(settings, window=window, labels=labels)


def _from_file(path: Path) -> LiveSettings:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), LiveSettings)
    except OSError as error:
        raise ConfigError(file_error(f"--source {path}", error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"--source {path}: {error}") from None


def _short(text: str) -> SourcePart:
    kind, _, rest = text.partition(":")
    if kind == "stdin" and not rest:
        return SourcePart("stdin")
    if kind == "folder" and rest:
        return SourcePart("folder", path=rest)
    if kind == "iio" and rest:
        return SourcePart("iio", device=rest)
    if kind in ("mqtt", "mqtts"):
        topic = urlsplit(text.replace("#", "%23")).path.lstrip("/").replace("%23", "#")
        if topic:
            return SourcePart("mqtt", broker=text[: -len(topic) - 1], topics=(topic,))
    raise ConfigError(
        "--source must be FILE.toml, stdin, folder:PATH, mqtt://HOST[:PORT]/TOPIC or iio:DEVICE, "
        f"got {re.sub('//.*@', '//', text)!r}"
    )


def _from_bundle(window: WindowPart) -> WindowPart:
    if not window.bundle:
        return window
    try:
        manifest = unpack(Path(window.bundle).read_bytes()).manifest
    except OSError as error:
        raise ConfigError(file_error(f"--bundle {window.bundle}", error)) from None
    bundle_window = manifest.window
    if bundle_window.height:
        raise ConfigError(f"--bundle {window.bundle} is for images, which cannot be recorded")
    sizes = bundle_window.length, bundle_window.stride, bundle_window.steps
    label_channels = tuple(name for name in window.channels if is_said(name))
    return WindowPart(
        bundle_window.channels + label_channels,
        bundle_window.rate_hz or window.rate_hz,
        *sizes,
        manifest.classes,
        window.bundle,
    )


def _words(text: str | None) -> Sequence[str]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()
