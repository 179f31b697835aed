"""From nothing to a fleet with TLS by the commands of docs/enrol.md, with real processes and a
real Mosquitto: two devices enrol, train and renew; one is banned while it works, is cut off within
seconds and stays out, also over restarts of the broker; the other works on."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from aggregator.enrolment.desk import ban
from aggregator.storage.enrolment_store import open_enrolments
from simulation.datasets.windows import FleetData
from simulation.local.fleet import write_device_folder
from tests.end_to_end.fleet import Fleet, find_mosquitto
from tests.support.bundles import Exported
from tests.support.waiting import wait_until
from wire.errors import LinkError
from wire.identity.certificates import read_certificate
from wire.links.mqtt import MqttLink
from wire.links.port import Delivery, Denied, LinkDown
from wire.topics import Topics

TOPICS = Topics("default")


def rounds(served: Fleet) -> int:
    return max(
        [0, *(int(number) for number in re.findall(r"Round (\d+) opened", served.log("serve")))]
    )


def serve(served: Fleet) -> None:
    served.serve("--rounds", "100000", "--enrol-days", "0.0045")


@pytest.fixture
def served(tmp_path: Path, exported: Exported, fleet: FleetData) -> Iterator[Fleet]:
    served = Fleet(tmp_path, find_mosquitto())
    served.init(exported.folder)
    served.start_broker()
    serve(served)
    for name in ("d0", "d1"):
        write_device_folder(fleet, name, tmp_path / name)
    yield served
    served.close()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_devices_enrol_train_and_renew_and_one_that_is_banned_is_out_within_seconds(
    served: Fleet,
) -> None:
    for name in ("d0", "d1"):
        token = served.run("shoal", "enrol", "token", "runs/served", "--tags", "lab").strip()
        served.run(
            "shoal-edge", "enrol", served.url, token, "--state", f"state-{name}", "--device", name
        )
        data = [
            "--data",
            str(served.folder / name),
            "--state",
            str(served.folder / f"state-{name}"),
        ]
        served.start(name, "edge_client.main", "run", *data)
    wait_until(lambda: rounds(served) >= 2)

    # certificates of six minutes, which began ten minutes ago, are renewed at once; the devices
    # connect with the new ones, and go on
    pair = served.folder / "state-d0" / "enrolled" / "device.pem"
    wait_until(lambda: "Certificate renewed: device=d0" in served.log("d0"))
    assert "renewed" in served.run("shoal", "enrol", "audit", "runs/served")
    wait_until(lambda: served.log("d0").count("Connected: device=d0") >= 2)
    assert read_certificate(pair.read_text()).not_valid_after_utc.timestamp() < time.time() + 4000
    reached = rounds(served)
    wait_until(lambda: rounds(served) > reached)

    witness, aggregator_side = served.link("d2"), TOPICS.device("d2", "plan")
    witness.subscribe(aggregator_side)
    drained(witness)
    connections = served.log("d0").count("Connected: device=d0")
    folder = served.folder / "runs" / "served"
    with closing(open_enrolments(folder)) as store:
        ban(store, "d1")
        wait_until(
            lambda: (
                "Connection lost" in served.log("d1").rpartition("Connected: device=d1\n")[2]
                or denied(served)
            ),
            10,
        )
    wait_until(lambda: denied(served), 20)
    served.stop("d1")
    assert out(served, "d1")
    assert "d1  banned" in served.run("shoal", "enrol", "list", "runs/served")
    assert served.log("d0").count("Connected: device=d0") == connections, (
        "the others are not disturbed"
    )
    assert not [event for event in drained(witness) if isinstance(event, LinkDown)]

    # it stays out when the broker comes back, also if that has lost the ban, and when the service
    # comes back
    served.stop("broker")
    (folder / "broker" / "data" / "dynamic-security.json").write_text("{}\n")
    served.start_broker()
    wait_until(
        lambda: (
            "banned at the broker: device=d1"
            in served.log("serve").partition("banned at the broker: device=d1")[2]
        )
    )
    assert out(served, "d1")
    served.stop("serve")
    served.stop("broker")
    served.start_broker()
    assert out(served, "d1"), "the broker knows it by itself"
    serve(served)
    assert out(served, "d1")

    with closing(open_enrolments(folder)) as store:
        ban(store, "d1", lifted=True)
    wait_until(lambda: not out(served, "d1"))


def denied(served: Fleet) -> bool:
    return "The broker denies access to a topic: device=d1 action=subscribe" in served.log("d1")


def drained(link: MqttLink) -> list[object]:
    events: list[object] = []
    while (event := link.receive(timeout_s=0.5)) is not None:
        events.append(event)
    return events


def out(served: Fleet, name: str) -> bool:
    """Return True if a client with this device's credentials can neither write nor read at the
    broker, whatever is retained or waits there."""
    try:
        link = served.link(name)
    except LinkError:
        return True
    try:
        link.subscribe(TOPICS.aggregator, TOPICS.device(name, "plan"))
        link.publish(TOPICS.device(name, "check-in"), b"{}")
        events = [*drained(link), *drained(link)]
        told = {event.action for event in events if isinstance(event, Denied)}
        return told == {"subscribe", "publish"} and not [
            event for event in events if isinstance(event, Delivery)
        ]
    finally:
        with suppress(LinkError):
            link.close()


@pytest.mark.slow
def test_what_waited_for_a_device_that_is_banned_while_it_is_away_is_gone(served: Fleet) -> None:
    """An order that the broker has queued would be delivered without another look at the access
    list."""
    topic = TOPICS.device("d9", "plan")
    served.link("d9").subscribe(topic)
    time.sleep(1)
    served.stop("serve")
    link = served.link("d9")
    link.subscribe(topic)
    drained(link)
    link.close()
    aggregator = served.link("default@aggregator")
    aggregator.publish(topic, b"a secret")
    aggregator.close()
    with closing(open_enrolments(served.folder / "runs" / "served")) as store:
        ban(store, "d9")
    serve(served)
    wait_until(lambda: "banned at the broker: device=d9" in served.log("serve"))
    assert [event for event in drained(served.link("d9")) if isinstance(event, Delivery)] == []


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_copied_state_folder_ends_with_one_device_and_a_person_who_knows(served: Fleet) -> None:
    """Two real processes of one identity on one broker: the service works with one of them, and the
    other one ends, says why, and does not come back."""
    token = served.run("shoal", "enrol", "token", "runs/served").strip()
    states = {name: served.folder / f"state-{name}" for name in ("d0", "copy")}
    options = ["--state", str(states["d0"]), "--device", "d0"]
    served.run("shoal-edge", "enrol", served.url, token, *options)

    def start(name: str) -> None:
        data = ["--data", str(served.folder / "d0"), "--state", str(states[name])]
        served.start(name, "edge_client.main", "run", *data)

    start("d0")
    wait_until(lambda: "Connected: device=d0" in served.log("d0"))
    served.stop("d0")
    shutil.copytree(states["d0"], states["copy"])
    start("d0")
    wait_until(lambda: served.log("d0").count("Connected: device=d0") >= 2)
    wait_until(lambda: served.get("/devices/d0")["record"]["facts"]["start"] == 2)
    start("copy")
    assert served.processes["copy"].wait(60) == 3
    assert "error: another device uses this identity" in served.log("copy")
    assert "reason=second-device times=1 device=d0" in served.log("serve")
    assert served.get("/devices/d0")["record"]["second_s"] > 0

    connections = served.log("copy").count("Connected")
    start("copy")
    assert served.processes["copy"].wait(60) == 3
    assert served.log("copy").count("Connected") == connections, "it does not even connect"
    wait_until(lambda: served.get("/devices/d0")["line"]["online"])
    assert served.processes["d0"].poll() is None
