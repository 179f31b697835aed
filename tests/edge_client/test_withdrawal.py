"""A device's owner agrees no longer: what is said, and what is taken for an answer."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.commands.withdraw import said_by, tell
from wire.codec import decode, digest, encode
from wire.identity.keys import new_key
from wire.identity.signed import Signer, vouch
from wire.links.in_process import InProcessBroker
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, Link
from wire.messages import Acknowledge, DeviceStatus
from wire.topics import Topics

TOPICS = Topics("f")


def status_on(link: Link, patience_s: float = 10.0) -> bytes:
    """The next status that a device publishes."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        event = link.receive(timeout_s=0.2)
        if isinstance(event, Delivery) and event.topic == TOPICS.device("d", "status"):
            return event.payload
    raise AssertionError("no status came")


def answering(link: Link, answers: Callable[[bytes], list[bytes]]) -> threading.Thread:
    """An aggregator that gives these answers to a status."""

    def run() -> None:
        for answer in answers(status_on(link)):
            link.publish(TOPICS.device("d", "reply"), answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_only_a_signed_answer_to_these_very_bytes_confirms_it() -> None:
    root, service, broker = new_key(), new_key(), InProcessBroker()
    sign = Signer(service, vouch(root, "f", service.public_key(), time.time() + 1000))
    device, server = broker.connect("d"), broker.connect("server")
    server.subscribe(TOPICS.device("d", "status"))
    wrong = [Acknowledge("d", digest(b"something else")), Acknowledge("e", "0" * 64)]
    thread = answering(
        server,
        lambda said: [*map(sign, wrong), encode(Acknowledge("d", digest(said))), b"not JSON"],
    )
    assert not tell(device, TOPICS, "d", said_by("d"), (root.public_key(),), wait_s=1.0)
    thread.join()
    thread = answering(server, lambda said: [sign(Acknowledge("d", digest(said)))])
    assert tell(device, TOPICS, "d", said_by("d"), (root.public_key(),), wait_s=10.0)
    thread.join()
    later = broker.connect("later")
    later.subscribe(TOPICS.device("d", "status"))
    kept: DeviceStatus = decode(status_on(later), DeviceStatus)
    assert (kept.online, len(kept.withdrawn)) == (False, 32), "it stays at the broker"
    assert said_by("d") != said_by("d"), "an answer to an earlier withdrawal is none to this one"


def test_the_command_says_whether_it_was_confirmed_and_its_will_says_the_same(
    tmp_path: Path, mosquitto: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "withdraw",
        "--id",
        "d",
        "--fleet",
        "f",
        "--insecure",
    ]
    command += ["--state", str(tmp_path), "--broker", mosquitto]
    alone = subprocess.run([*command, "--wait", "2"], capture_output=True, text=True)
    assert (alone.returncode, alone.stdout) == (
        1,
        "not confirmed: the aggregator did not answer\n",
    ), alone.stderr
    server = MqttLink(BrokerAddress.parse(mosquitto), "server")
    try:
        server.subscribe(TOPICS.device("d", "status"))
        before = status_on(server)
        assert decode(before, DeviceStatus).withdrawn, (
            "what was said waits for an aggregator that comes back"
        )
        thread = answering(server, lambda said: [encode(Acknowledge("d", digest(said)))])
        told = subprocess.run([*command, "--wait", "20"], capture_output=True, text=True)
        thread.join()
    finally:
        server.close()
    assert (told.returncode, told.stdout) == (
        0,
        "confirmed: this device gets no assignments until it runs again\n",
    ), told.stderr


def test_a_broker_that_is_away_is_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "withdraw",
        "--id",
        "d",
        "--insecure",
        "--state",
        str(tmp_path),
        "--wait",
        "1",
    ]
    done = subprocess.run(
        [*command, "--broker", "mqtt://127.0.0.1:1"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout.startswith("not confirmed: broker")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("withdrawn", ["0", "0" * 31 + "G", "0" * 33, "A" * 32])
def test_anything_but_128_bits_is_refused(withdrawn: str) -> None:
    with pytest.raises(Exception, match="withdrawn"):
        decode(encode(DeviceStatus("d", False, withdrawn)), DeviceStatus)
