"""Three helpers as programs at a real broker: kills at each step, and requests of strangers."""

import base64
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator.core.sums import opened
from helper.storage import HelperFolder, make_helper
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import stop_processes
from tests.helper.exchange import AGGREGATOR_KEY, DEVICES, ROSTER, Exchange
from tests.support.waiting import wait_until
from wire.identity.certificates import write_public_key
from wire.identity.keys import new_key, public_pem
from wire.identity.signed import Signer, vouch
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.secret.messages import Agreement, Agreements, MaskSums, ShareCheck, SumRefusal, SumRequest
from wire.secret.payloads import decode_answer, encode_request, read_sums, unseal_sums
from wire.secret.roster import sign_roster
from wire.topics import Topics

T = TypeVar("T")
NAMES = ("north", "south", "west")
TOPICS = Topics("watches")


@dataclass
class Helpers:
    """Helpers of a fleet as processes, and a link with which they are asked."""

    folder: Path
    broker: str
    link: MqttLink
    sign: Signer
    port: int = field(default_factory=free_port)
    """Port of the metrics of the first helper."""
    exchange: Exchange = field(default_factory=Exchange)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start(self, name: str) -> None:
        """Start a helper, and wait until it is connected."""
        path = self.folder / f"{name}.log"
        path.touch()
        before = self.log(name).count("Connected")
        options: dict[str, object] = {
            "--folder": self.folder / name,
            "--trust": self.folder / "trust.pem",
            "--roster": self.folder / "roster",
            "--broker": self.broker,
        }
        if name == NAMES[0]:
            options["--metrics"] = f"127.0.0.1:{self.port}"
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "helper.main", "run", *words]
        with path.open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(
            lambda: self.log(name).count("Connected") > before, explain=lambda: self.log(name)
        )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def metrics(self) -> dict[str, float]:
        """The metrics of the first helper, by name and label without `shoal_helper_`."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            families = text_string_to_metric_families(answer.read().decode())
        return {
            "_".join([sample.name.removeprefix("shoal_helper_"), *sample.labels.values()]): (
                sample.value
            )
            for family in families
            for sample in family.samples
        }

    def ledger(self, name: str) -> bytes:
        return (self.folder / name / "ledger").read_bytes()

    def request(self, devices: list[str], agreements: Agreements = ()) -> bytes:
        request = self.exchange.request(devices, agreements)
        return encode_request(request, self.exchange.shares(devices), self.sign)

    def ask(self, number: int, payload: bytes, kind: type[T]) -> tuple[T, str, bytes]:
        """The answer of a kind to a request, which is repeated until there is one: the message, its
        signature, and sealed sums."""
        name, end_s = NAMES[number], time.monotonic() + 60
        question = self.exchange.question.digest  # of repeated requests, late answers may come
        key = self.exchange.keys[number].public_key()
        while time.monotonic() < end_s:
            self.link.publish(TOPICS.helper(name, "request"), payload)
            while (event := self.link.receive(timeout_s=3)) is not None:
                if isinstance(event, Delivery) and event.topic == TOPICS.helper(name, "answer"):
                    answer, signature, sealed = decode_answer(event.payload, key)
                    if (
                        isinstance(answer, kind)
                        and getattr(answer, "question", question) == question
                    ):
                        return answer, signature, sealed
        raise TimeoutError(self.log(name))

    def open(self, agreements: Agreements) -> dict[str, np.ndarray]:
        """The sum over all devices, by the answers of the first two helpers."""
        answers = []
        for number in (0, 1):
            request = self.request(DEVICES, agreements)
            message, _, sealed = self.ask(number, request, MaskSums)
            text = unseal_sums(sealed, AGGREGATOR_KEY, message.set)
            answers.append((message, read_sums(self.exchange.question, message.helper, text)))
        return opened(self.exchange.question, self.exchange.total(DEVICES), answers)

    def agreement(self, number: int) -> tuple[Agreement, str]:
        return self.ask(number, self.request(DEVICES), Agreement)[:2]

    def refusal(self, devices: list[str], agreements: Agreements = ()) -> str:
        """The problem for which the first helper refuses a set."""
        return self.ask(0, self.request(devices, agreements), SumRefusal)[0].problem


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[Helpers]:
    root, service = new_key(), new_key()
    sign = Signer(service, vouch(root, "watches", service.public_key(), time.time() + 1000))
    (tmp_path / "trust.pem").write_bytes(public_pem(root))
    (tmp_path / "roster").write_bytes(sign_roster(root, "watches", ROSTER))
    with EmbeddedBroker() as broker:
        link = MqttLink(BrokerAddress.parse(broker.url_v5), "watches@aggregator")
        link.subscribe(TOPICS.of_kind("answer"))
        helpers = Helpers(tmp_path, broker.url_v5, link, sign)
        for name in NAMES:
            make_helper(tmp_path / name, "watches", name)
            helpers.start(name)
        helpers.exchange.keys = [HelperFolder(tmp_path / name).key for name in NAMES]
        helpers.exchange.ask("a" * 64)
        for device in DEVICES:
            helpers.exchange.upload(device)
        yield helpers
        stop_processes([*helpers.processes.values()])
        link.close()


def check_sum(helpers: Helpers, sums: dict[str, np.ndarray]) -> None:
    fixed = helpers.exchange.question.fixed
    for part, total in sums.items():
        each = np.array([helpers.exchange.integers[device][part] for device in DEVICES])
        np.testing.assert_array_equal(
            total, fixed.decode(each.sum(axis=0, dtype=fixed.dtype), 0.25)
        )


def test_a_helper_that_is_killed_at_any_step_opens_the_set_and_never_another(
    helpers: Helpers,
) -> None:
    helpers.kill("north")  # before the request
    helpers.start("north")
    empty = helpers.ledger("north")
    helpers.link.publish(TOPICS.helper("north", "request"), helpers.request(DEVICES))
    wait_until(lambda: helpers.ledger("north") != empty)
    helpers.kill("north")  # while it writes, or before it answers
    helpers.start("north")
    agreements = tuple(helpers.agreement(number) for number in range(3))
    helpers.kill("north")  # after it has agreed
    written = helpers.ledger("north")
    helpers.start("north")
    assert helpers.agreement(0)[0] == agreements[0][0]
    first = helpers.open(agreements)
    helpers.kill("north")  # after it has opened
    helpers.start("north")
    check_sum(helpers, first)
    check_sum(helpers, helpers.open(agreements))
    assert helpers.ledger("north") == written

    assert helpers.metrics()["sums"] == 1
    peak = Path(f"/proc/{helpers.processes['north'].pid}/status").read_text()
    assert int(peak.split("VmHWM:")[1].split()[0]) <= 60 * 1024

    helpers.exchange.uploads.pop(DEVICES[0])
    assert helpers.refusal(DEVICES[1:]) == "opened-before: another set of this question was opened"
    helpers.exchange.ask("b" * 64)
    for device in DEVICES[1:]:
        helpers.exchange.upload(device)
    assert helpers.refusal(DEVICES[1:]).startswith(
        "differencing: with earlier sums it would show 1 devices"
    )
    assert helpers.ledger("north") == written


def searched(pattern: bytes) -> set[bytes]:
    """The forms in which a pattern of bytes is looked for."""
    encoded = {base64.b64encode(bytes(at) + pattern)[8 if at else 0 : -8] for at in range(3)}
    return {pattern, pattern.hex().encode(), *encoded}


def places_of(helpers: Helpers, packets: list[bytes], patterns: list[bytes]) -> set[str]:
    """The places where one of these patterns is: a packet of the broker, a file of a helper."""
    places = {f"packet {number}": packet for number, packet in enumerate(packets)}
    for file in helpers.folder.rglob("*"):
        if file.is_file():
            places[str(file.relative_to(helpers.folder))] = file.read_bytes()
    forms = {form for pattern in patterns for form in searched(pattern)}
    return {name for name, text in places.items() if any(form in text for form in forms)}


def test_no_device_s_numbers_and_no_sum_are_at_a_helper_or_the_broker(helpers: Helpers) -> None:
    watcher = MqttLink(BrokerAddress.parse(helpers.broker), "watcher")
    watcher.subscribe("#")
    while watcher.receive(timeout_s=0.5) is not None:
        pass
    exchange, update = helpers.exchange, TOPICS.device("d0", "update")
    for device in DEVICES:
        for values in exchange.uploads[device][2].values():
            helpers.link.publish(update, values.tobytes())
    check_sum(helpers, helpers.open(tuple(helpers.agreement(number) for number in range(3))))
    packets = []
    while (event := watcher.receive(timeout_s=1)) is not None:
        if isinstance(event, Delivery):
            packets.append(event.payload)
    watcher.close()
    assert len(packets) >= len(DEVICES) * 2 + 10, "masked values, requests and answers"

    integers = [i for each in exchange.integers.values() for i in each.values()]
    numbers = [n for each in exchange.numbers.values() for n in each.values()]
    total = exchange.total(DEVICES)
    sums = [sum(i[part] for i in exchange.integers.values()) for part in total]
    masks = [total[part] - sums[number] for number, part in enumerate(total)]
    secret = [np.asarray(each).tobytes() for each in (*integers, *numbers, *sums, *masks)]
    assert places_of(helpers, packets, secret) == set()

    in_the_clear = [*packets, b"[" + base64.b64encode(b"xy" + secret[0]) + b"]"]
    assert places_of(helpers, in_the_clear, secret) == {f"packet {len(packets)}"}
    assert "west.log" in places_of(helpers, [], [b"Connected to the broker"])


def forged_aggregator(helpers: Helpers) -> bytes:
    """A request that the broker has changed, so that it could open the sums."""
    first, rest = helpers.request(DEVICES).split(b"\n", 1)
    request = msgspec.json.decode(first, type=SumRequest)
    key = helpers.exchange.keys[1].public_key()
    forged = msgspec.structs.replace(request, seal_to=write_public_key(key))
    return msgspec.json.encode(forged) + b"\n" + rest


def no_shares(helpers: Helpers) -> bytes:
    return helpers.request(DEVICES).rpartition(b"\n")[0]


@pytest.mark.parametrize("hostile", [forged_aggregator, no_shares, lambda _: b"", lambda _: b"{}"])
def test_a_helper_ignores_what_is_no_request_of_its_aggregator(
    helpers: Helpers, hostile: Callable[[Helpers], bytes]
) -> None:
    empty = helpers.ledger("north")
    helpers.link.publish(TOPICS.helper("north", "request"), hostile(helpers))
    wait_until(lambda: "Request ignored" in helpers.log("north"))
    assert helpers.ledger("north") == empty
    assert helpers.agreement(0)[0].helper == helpers.exchange.question.helpers[0]


def test_a_check_leaves_nothing_in_the_ledger(helpers: Helpers) -> None:
    request = msgspec.structs.replace(helpers.exchange.request(DEVICES), check=True)
    payload = encode_request(request, helpers.exchange.shares(DEVICES), helpers.sign)
    for number in range(3):
        assert helpers.ask(number, payload, ShareCheck)[0].unusable == ()
    for name in NAMES:
        assert helpers.ledger(name).count(b"\n") == 1, "the line that names the helper"


def test_a_check_of_a_question_to_other_helpers_is_refused(helpers: Helpers) -> None:
    exchange = helpers.exchange
    others = exchange.question.helpers[1:]
    exchange.question = msgspec.structs.replace(exchange.question, helpers=others)
    check = msgspec.structs.replace(exchange.request(DEVICES), check=True)
    payload = encode_request(check, exchange.shares(DEVICES), helpers.sign)
    assert helpers.ask(0, payload, SumRefusal)[0].problem.startswith("unknown-helper")


def test_an_answer_that_the_broker_does_not_take_is_refused(helpers: Helpers) -> None:
    helpers.kill("north")
    helpers.broker += "&max_packet=4096"
    helpers.start("north")
    helpers.exchange.sizes = {"change/a": 3000}
    helpers.exchange.ask("c" * 64)
    for device in DEVICES:
        helpers.exchange.upload(device)
    agreements = tuple(helpers.agreement(number) for number in range(3))
    assert helpers.refusal(DEVICES, agreements).startswith(
        "too-large: the address mqtt://127.0.0.1"
    )


def test_a_roster_is_read_again_for_each_request(helpers: Helpers) -> None:
    roster = (helpers.folder / "roster").read_bytes()
    (helpers.folder / "roster").write_bytes(b"none")
    assert helpers.refusal(DEVICES) == "unknown-device: the helper cannot read its roster"
    (helpers.folder / "roster").write_bytes(roster)
    assert helpers.agreement(0)[0].question == helpers.exchange.question.digest


def test_metrics_count_answers_and_show_the_ledger(helpers: Helpers) -> None:
    idle = helpers.metrics()
    counts = {"agreement": 0, "mask-sums": 0, "none": 0}
    assert idle == {
        "connected": 1,
        "sums": 0,
        "devices": 0,
        **{f"requests_total_{answer}": number for answer, number in counts.items()},
    }
    helpers.link.publish(TOPICS.helper("north", "request"), b"none")
    wait_until(lambda: helpers.metrics()["requests_total_none"] == 1)
    assert helpers.refusal(DEVICES[:2]).startswith("too-few")
    helpers.open(tuple(helpers.agreement(number) for number in range(3)))
    opened = helpers.metrics()
    assert opened.pop("sum_seconds") > 0
    for answer in ("too-few", "agreement", "mask-sums"):
        assert opened.pop(f"requests_total_{answer}") >= 1
    assert opened == {
        "connected": 1,
        "sums": 1,
        "devices": len(DEVICES),
        "smallest_part": len(DEVICES),
        "requests_total_none": 1,
    }
    with socket.create_connection(("127.0.0.1", helpers.port)):  # it sends no request
        assert helpers.metrics() == helpers.metrics()
