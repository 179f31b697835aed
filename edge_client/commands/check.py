"""`shoal-edge check`: tests if this device can take part, before it is installed in the field."""

import math
import re
import shutil
import ssl
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from cryptography import x509

from edge_client.commands.predict import reader_may_leave
from edge_client.core.offers import alone_of
from edge_client.core.ports import Windows
from edge_client.data.labels import are_steps, has_classes
from edge_client.data.layout import check_shape, no_windows, windows_for
from edge_client.live.labelling.labels import Labels
from edge_client.live.recording import FOLDER
from edge_client.live.settings import live_settings
from edge_client.live.store import LiveData
from edge_client.models.current import CurrentModel
from edge_client.models.trial import has_any, one_window
from edge_client.options import (
    broker_address,
    data_of,
    graph_loader,
    manifest_of,
    policy_of,
    trusted_keys,
    windows_of,
)
from edge_client.storage.owner import Owner, check_owner
from edge_client.storage.state import DeviceState
from host.files import file_error, is_locked
from host.loopback import is_loopback
from wire.bundle import Manifest, unpack
from wire.errors import ConfigError, LinkError, ShoalError, WireError
from wire.identity.signed import Verifier, utc
from wire.links.mqtt import MqttLink
from wire.links.port import Delivery, Denied
from wire.messages import AggregatorStatus, Policy
from wire.topics import Topics

FREE_BYTES = 256 * 2**20
"""Free bytes that the state folder needs: a bundle and a few models of at most 64 MiB."""
STATUS_WAIT_S, CONNECT_S = 5.0, 10.0
CLOCK_S = 300.0
"""Maximum error of the device's clock in seconds. Certificates are judged by the clock."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: the subject, True if it is good, and the result or the remedy."""

    subject: str
    is_good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.is_good else 'WRONG'} {self.subject}: {self.text}"


Heard = tuple[AggregatorStatus, float]
"""The aggregator's status, and the end of its voucher in Unix seconds."""


def check(arguments: Namespace) -> int:
    """Print the findings and return the exit status: 0 if all are good, else 1."""
    findings = []
    with reader_may_leave():
        for finding in _findings(arguments):
            print(finding, flush=True)
            findings.append(finding)
    return 0 if all(finding.is_good for finding in findings) else 1


def _findings(arguments: Namespace) -> Iterator[CheckResult]:
    yield _finding("data", lambda: _data(arguments))
    yield _finding("runtime", lambda: _runtime(arguments))
    yield _finding(
        "state folder", lambda: _state_folder(arguments.state, Owner(arguments.id, arguments.fleet))
    )
    yield _finding("model in use", lambda: _model(arguments))
    yield _finding("credentials", lambda: _credentials(arguments))
    yield _finding("trusted keys", lambda: _trusted(arguments))
    yield _finding("policy", lambda: _policy(arguments))
    if _is_in_use(arguments.state):
        yield CheckResult(
            "broker", True, "not tried: shoal-edge runs with this state folder; read its log"
        )
        return
    heard: list[Heard] = []
    lines = [_finding("broker", lambda: _broker(arguments, heard))]
    if heard:
        lines.append(_finding("clock", lambda: _clock(heard[0])))
    # messages of the broker cannot be verified with a wrong clock, so that is named first
    yield from (lines if lines[-1].is_good else reversed(lines))


def _finding(subject: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(subject, True, look())
    except ShoalError as error:
        return CheckResult(subject, False, str(error))
    except Exception as error:
        return CheckResult(subject, False, f"{type(error).__name__}: {error}")


def _data(arguments: Namespace) -> str:
    if arguments.source is not None and arguments.data is None:
        return _live(arguments)
    windows, reading = data_of(arguments)
    needed = _needed(arguments)
    if needed is not None:
        fitted = windows_for(needed, windows)
        check_shape(fitted, needed)
    account = f"; {reading}" if reading else ""
    if not has_any(windows):
        return (
            f"no windows, of shape {windows.train_x.shape[1:]}: this device has its group's "
            f"model, and trains once it has some{account}"
        )
    account += f"; {_needs(needed)}" if needed is not None else ""
    more = f" and {windows.num_unlabelled} without labels" if windows.num_unlabelled else ""
    counted = f"{windows.num_train} training and {windows.num_test} test windows{more}"
    return f"{counted} of shape {windows.train_x.shape[1:]}, {_labels(windows)}{account}"


def _needed(arguments: Namespace) -> Manifest | None:
    """Return the manifest that the data have to fit: of `--bundle`, or of the model in use."""
    if arguments.bundle is not None:
        return manifest_of(arguments.bundle)
    if not (arguments.state / "session.json").exists():
        return None
    state = DeviceState(arguments.state, read_only=True)
    current = state.current()
    payload = state.blob(current.bundle) if current is not None else None
    return unpack(payload).manifest if payload is not None else None


def _needs(manifest: Manifest) -> str:
    """Return a description of the data that a bundle needs."""
    window = manifest.window
    rate = f" at {window.rate_hz:g} Hz" if window.rate_hz else ""
    return (
        f"they fit bundle {manifest.name}: channels {', '.join(window.channels)}, windows of "
        f"{window.length} samples{rate}, classes {', '.join(manifest.classes)}"
    )


def _labels(windows: Windows) -> str:
    y = windows.train_y
    if has_classes(y):
        return f"{len(np.unique(y))} classes"
    what = "quantities" if y.dtype.kind == "f" else "steps" if are_steps(y, ()) else "labels"
    return f"{y.shape[1]} {what} a window"


def _live(arguments: Namespace) -> str:
    settings = live_settings(arguments)
    folder = arguments.state / FOLDER
    what = (
        f"{','.join(settings.window.channels)} at {settings.window.rate_hz:g} Hz from "
        f"{re.sub('//.*@', '//', arguments.source)}"
    )
    if not folder.is_dir():
        return f"{what}: nothing is recorded yet"
    windows = LiveData(
        folder, Labels(folder, settings.classes), settings.cut, settings.classes
    ).now()
    return (
        f"{what}: {windows.num_train} training windows so far, {windows.num_test} held out, "
        f"{windows.num_unlabelled} without labels"
    )


def _runtime(arguments: Namespace) -> str:
    graph_loader(arguments)
    return str(arguments.runtime)


def _state_folder(folder: Path, owner: Owner) -> str:
    check_owner(folder, owner)
    DeviceState(folder, read_only=True).check_start()
    free = shutil.disk_usage(_existing(folder)).free
    if free < FREE_BYTES:
        raise ConfigError(
            f"{folder} needs at least {FREE_BYTES >> 20} MiB of free space, and {free >> 20} are "
            "free; make room, or use another disk"
        )
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
            file.write(b"shoal")
    except OSError as error:
        raise ConfigError(file_error(f"{folder} cannot be written", error)) from None
    in_use = ", in use by shoal-edge, which is running" if _is_in_use(folder) else ""
    return f"{folder}, {free >> 20} MiB free{in_use}"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _is_in_use(folder: Path) -> bool:
    try:
        return is_locked(folder)
    except OSError:
        return True


def _model(arguments: Namespace) -> str:
    if not (arguments.state / "session.json").exists():
        return "none yet: the first bundle comes with the first plan"
    if arguments.source is None:
        windows = windows_of(arguments)
    else:  # the model is tried without windows, as live data are not recorded here
        windows = no_windows(live_settings(arguments).cut)
    state = DeviceState(arguments.state)
    session, model = state.load(), CurrentModel(state, windows, graph_loader(arguments))
    if session.offer is not None and session.offer.problem:
        raise ConfigError(
            "the latest offered model cannot be used yet, and the previous one stays: "
            f"{session.offer.problem}"
        )
    if model.current is None:
        return "none yet: none was released to this device, and no run has finished here"
    model.predict(one_window(windows, model.loaded().bundle.manifest.window))
    is_whole = state.onnx(model.current) is not None
    if model.problem:
        consequence = (
            "applications can still read it from current/model.onnx"
            if is_whole
            else "applications that start now have no model"
        )
        raise ConfigError(
            f"it cannot be loaded, and the client uses the previous one; {consequence}: "
            f"{model.problem}"
        )
    if model.current.onnx and not is_whole:
        raise ConfigError(
            "current/model.onnx, which other programs may read, is damaged or missing; restart "
            "the client, which writes it again"
        )
    since = datetime.fromtimestamp(model.current.since_s, UTC)
    release = f"release {model.current.release}, " if model.current.release else ""
    personal_note = ", with what this device has kept of it" if model.current.personal_model else ""
    if alone := alone_of(session, model.current):
        personal_note = f", without a personal model: {alone}"
    return (
        f"{release}{model.current.model[:12]} of bundle {model.current.bundle[:12]}, in use since "
        f"{since:%Y-%m-%d %H:%M} UTC{personal_note}"
    )


def _credentials(arguments: Namespace) -> str:
    address = broker_address(arguments)
    for option in ("ca", "cert", "key"):
        path = getattr(arguments, option)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise ConfigError(file_error(f"--{option} {path}", error)) from None
    if not address.tls:
        return (
            "none: the broker is on this machine"
            if is_loopback(address.host)
            else "none: mqtt:// without TLS, as --insecure permits"
        )
    if arguments.key is not None and arguments.cert is None:
        raise ConfigError("--key needs --cert, which tells the broker the id of this device")
    context = ssl.create_default_context(cafile=arguments.ca)
    if arguments.cert is None:
        return "no certificate of this device: the broker has to know it by its password"
    try:
        context.load_cert_chain(arguments.cert, arguments.key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"--cert {arguments.cert} and --key {arguments.key} do not fit together: {error}"
        ) from None
    _check_name(arguments.cert, arguments.id)
    until = [
        _valid_until(option, getattr(arguments, option))
        for option in ("cert", "ca")
        if getattr(arguments, option)
    ]
    return f"certificate {arguments.cert}, valid until {min(until):%Y-%m-%d}"


def _check_name(path: Path, device_id: str) -> None:
    """Raise ConfigError unless the certificate's common name is the device id.

    The broker identifies a device by that name.
    """
    names = x509.load_pem_x509_certificate(path.read_bytes()).subject.get_attributes_for_oid(
        x509.NameOID.COMMON_NAME
    )
    if [name.value for name in names] != [device_id]:
        raise ConfigError(
            f"--cert {path} must be for {device_id} (--id), and is for "
            f"{', '.join(str(name.value) for name in names) or 'nobody'}"
        )


def _valid_until(option: str, path: Path) -> datetime:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"--{option} {path} is not a certificate: {error}") from None
    begin, end, now = (
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        datetime.now(UTC),
    )
    if not begin <= now <= end:
        raise ConfigError(
            f"--{option} {path} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, and today is "
            f"{now:%Y-%m-%d}; renew it, or set the clock"
        )
    return end


def _trusted(arguments: Namespace) -> str:
    keys = trusted_keys(arguments)
    return (
        f"{len(keys)} in {arguments.trust}"
        if keys
        else "none, as --insecure permits: whoever reaches the broker can make this device work"
    )


def _policy(arguments: Namespace) -> str:
    policy = policy_of(arguments)
    if policy is None:
        return "none: no --policy"
    rules = ", ".join(
        f"{name} {' '.join(value) if isinstance(value, tuple) else value}".lower()
        for name in Policy.__struct_fields__
        if (value := getattr(policy, name)) != getattr(Policy(), name)
    )
    rules = rules or "no restriction"
    return f"{arguments.policy}: {rules}{_unknown_graphs(arguments.state, policy)}"


def _unknown_graphs(folder: Path, policy: Policy) -> str:
    """Return a note on graphs that the policy names and the bundle in use does not have, or "".

    They may be another bundle's, or misspelt.
    """
    if not (folder / "session.json").exists():
        return ""
    state = DeviceState(folder)
    current = state.current()
    payload = state.blob(current.bundle) if current is not None else None
    if payload is None:
        return ""
    manifest = unpack(payload).manifest
    unknown = [
        name
        for name in (*(policy.graphs or ()), *(policy.unreported or ()))
        if name not in manifest.graphs
    ]
    names = ", ".join(sorted(manifest.graphs))
    return (
        f"; bundle {manifest.name}, in use, has no graph {', '.join(unknown)}; it has {names}"
        if unknown
        else ""
    )


def _broker(arguments: Namespace, heard: list[Heard]) -> str:
    """Connect as the device, subscribe to its topics, and wait for the aggregator's status.

    The status is appended to `heard`.

    Raises:
        LinkError: no connection, no status, an expired voucher, or an aggregator that is offline.
    """
    topics, address = Topics(arguments.fleet), broker_address(arguments)
    link = MqttLink(address, f"{arguments.fleet}.{arguments.id}", wait_s=CONNECT_S)
    try:
        link.subscribe(
            topics.device(arguments.id, "plan"),
            topics.device(arguments.id, "reply"),
            topics.aggregator,
        )
        status, until_s = _status(link, topics, Verifier(arguments.fleet, trusted_keys(arguments)))
        heard.append((status, until_s))
    finally:
        link.close()
    if time.time() > until_s:
        raise LinkError(
            f"{address}: connected, but the service's voucher ended at {utc(until_s)}, and this "
            f"device's clock says {utc(time.time())}; if the clock is right, make a new voucher "
            "with `shoal vouch`"
        )
    if not status.online:
        raise LinkError(
            f"{address}: connected, but the service of fleet {arguments.fleet!r} is not online; "
            "start `shoal serve`"
        )
    return f"{address}: connected, and the aggregator of fleet {arguments.fleet!r} is online"


def _status(link: MqttLink, topics: Topics, verifier: Verifier) -> Heard:
    """Return the aggregator's verified status, even if its voucher has expired."""
    end_s = time.monotonic() + STATUS_WAIT_S
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.receive(timeout_s=left_s)
        if isinstance(event, Denied):
            raise LinkError(
                f"connected, but the broker does not let this device {event.action} {event.topic}"
            )
        if isinstance(event, Delivery) and event.topic == topics.aggregator and event.payload:
            try:
                status = verifier.open(event.payload, AggregatorStatus, -math.inf)
                return status, verifier.until_s(event.payload)
            except WireError as error:
                raise LinkError(
                    f"connected, but the service's status cannot be verified: {error}; is --trust "
                    "the file of this fleet?"
                ) from None
    raise LinkError(
        f"connected, but no status of the service arrived in {STATUS_WAIT_S:g} s; is `shoal "
        f"serve` running for fleet {topics.fleet!r}, and does the broker let this device read "
        f"{topics.aggregator}?"
    )


def _clock(heard: Heard) -> str:
    (status, until_s), now_s = heard, time.time()
    at_s = status.at_s
    behind_s = at_s - now_s
    if not abs(behind_s) <= CLOCK_S:
        until = f", whose voucher is good until {utc(until_s)}" if math.isfinite(until_s) else ""
        raise ConfigError(
            f"it says {utc(now_s)}, {abs(behind_s):.0f} s "
            f"{'behind' if behind_s > 0 else 'ahead of'} the service's, {utc(at_s)}{until}; set "
            "it, for example by NTP"
        )
    return f"within {max(1.0, abs(behind_s)):.0f} s of the aggregator's"
