"""Settings of a device (`host.settings`).

The options of `shoal-edge`, their environment variables and the reference page are made from them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from host.logs import Form
from host.settings import LARGEST, Setting, about, settings_of
from wire.pieces import MOST_BYTES

PAGE = "127.0.0.1:8765"
LENGTH, STRIDE = 128, 64
"""Default length and stride of windows, in samples."""
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `shoal-edge`. Each command has some of them."""

    state: Annotated[Path | None, about("Folder that must survive a restart.")] = None
    id: Annotated[
        str | None,
        about(
            "This device's id; an enrolled device needs none of --id, --broker, --fleet, --trust, "
            "--ca, --cert, --key."
        ),
    ] = None
    fleet: Annotated[str, about("Name of the fleet.")] = "default"
    broker: Annotated[
        str,
        about(
            "mqtt://[USER:PASSWORD@]HOST[:PORT] or mqtts://...; in USER and PASSWORD, # is written "
            "%23, / is %2F, and so on."
        ),
    ] = "mqtt://localhost"
    broker_user: Annotated[
        str | None, about("User at the broker; its address may have it instead.")
    ] = None
    broker_password_file: Annotated[
        Path | None,
        about("File with the password at the broker; SHOAL_BROKER_PASSWORD has it instead."),
    ] = None
    ca: Annotated[
        Path | None, about("Certificate authority of the broker (PEM); needs mqtts://.")
    ] = None
    cert: Annotated[Path | None, about("This device's certificate (PEM).")] = None
    key: Annotated[Path | None, about("This device's private key (PEM).")] = None
    enrolled: Annotated[
        Path | None,
        about("Folder that `enrol` writes; enrolled in the state folder when not given."),
    ] = None
    trust: Annotated[
        Path | None,
        about("Public keys (PEM), one or more: bundles and messages must be signed with one."),
    ] = None
    insecure: Annotated[
        bool, about("Permit to run without --trust, and mqtt:// to another machine.")
    ] = False
    policy: Annotated[Path | None, about("Owner's policy: what this device permits (TOML).")] = None
    helpers: Annotated[
        Path | None,
        about("Keys of the helpers of secret sums (helper.pub of each, in one file)."),
    ] = None
    max_payload: Annotated[
        int, about("Size of the largest model or update in MiB.", ge=1, le=LARGEST)
    ] = MOST_BYTES >> 20
    data: Annotated[
        Path | None,
        about("Folder with train.npz and test.npz, X.npy and y.npy, or recordings as *.csv."),
    ] = None
    source: Annotated[
        str | None,
        about(
            "Source of live samples: FILE.toml, stdin, folder:PATH, mqtt://HOST[:PORT]/TOPIC or "
            "iio:DEVICE."
        ),
    ] = None
    bundle: Annotated[
        Path | None,
        about("Bundle that has the channels, rate, window and classes of live data."),
    ] = None
    channels: Annotated[
        str | None, about("Names of the channels of live data, separated by commas.")
    ] = None
    rate_hz: Annotated[
        float | None,
        about("Rate in Hz to which live samples are resampled.", unit="hz", ge=0),
    ] = None
    classes: Annotated[str | None, about("Names of the classes, separated by commas.")] = None
    page: Annotated[
        str | None,
        about(f"Show a page with a button for each class at HOST:PORT, or at {PAGE}."),
    ] = None
    window: Annotated[
        int | None,
        about(
            f"Samples in a window of recordings and live data; {LENGTH} when not given.",
            ge=0,
            le=LARGEST,
        ),
    ] = None
    stride: Annotated[
        int | None,
        about(f"Samples between two windows; {STRIDE} when not given.", ge=0, le=LARGEST),
    ] = None
    steps: Annotated[
        int | None,
        about(
            "Steps of a window of recordings and live data, each with a class of its own.",
            ge=0,
            le=LARGEST,
        ),
    ] = None
    live: Annotated[
        bool,
        about("Answer each window of the recording, or of --source, as it arrives."),
    ] = False
    stream: Annotated[
        Literal["auto", "off"],
        about(
            "Use of earlier windows in the answers to a recording or to live windows: auto learns "
            "how long activities last, off answers each window alone."
        ),
    ] = "auto"
    lag: Annotated[
        int,
        about("Later windows of a recording, or live ones, that an answer waits for.", ge=0, le=60),
    ] = 0
    publish: Annotated[
        str | None,
        about(
            "Target of answers to live windows: mqtt://HOST[:PORT]/TOPIC or unix:PATH; standard "
            "output when not given."
        ),
    ] = None
    threads: Annotated[int, about("Threads for the graphs.", ge=0, le=LARGEST)] = 1
    runtime: Annotated[Literal["onnx", "executorch"], about("Runtime of the graphs.")] = "onnx"
    provider: Annotated[
        Literal["CPU", "CUDA", "Tensorrt"], about("Execution provider of onnxruntime.")
    ] = "CPU"
    library: Annotated[
        Path | None,
        about("Path of libshoal_executorch.so, if `make native` did not build it here."),
    ] = None
    log: Annotated[LogLevel, about("Lowest level of the log's lines.")] = "INFO"
    log_format: Annotated[Form, about("Format of the log's lines.")] = "text"
    device: Annotated[
        str | None,
        about("Id for this device; without it, that of the token, or one made from its key."),
    ] = None
    wait_s: Annotated[
        float, about("Seconds to wait for a network and an answer.", unit="s", ge=0)
    ] = 60.0
    again: Annotated[
        bool, about("Enrol anew, with a new key, although this device is enrolled.")
    ] = False
    install: Annotated[bool, about("As root: install and start the systemd unit.")] = False


SETTINGS: Mapping[str, Setting] = settings_of(DeviceSettings)


def usual(name: str) -> Any:
    """Return the value of a setting without an option.

    It is the value of the environment variable ``SHOAL_EDGE_NAME``, or else the default.

    Raises:
        ConfigError: the variable has a value that the setting cannot have.
    """
    setting = SETTINGS[name]
    variables = [f"SHOAL_EDGE_{setting.parameter.upper()}"]
    if name == "broker":
        variables.append("SHOAL_BROKER")  # `shoal serve` reads it too
    for variable in variables:
        if variable in os.environ:
            return setting.read(os.environ[variable], variable)
    return setting.default
