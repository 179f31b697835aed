"""Access through a Mosquitto that is set up as in `deploy/mosquitto`, with certificates of a
fleet's own authority."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
import trustme

from aggregator.leadership.identity import find_epoch
from aggregator.leadership.rivals import WrongFleet
from aggregator.main import serve
from aggregator.service_settings import ServeSettings
from aggregator.transfer.fleet import FleetLink
from algorithms.composition import read_algorithm
from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.contracts.link import deliveries, settle
from tests.support.brokers import wait_for_port
from tests.support.bundles import Exported
from tests.support.known import known
from tests.support.waiting import wait_until
from wire.errors import ConfigError, LinkError, OtherAggregator
from wire.identity.keys import new_key
from wire.identity.signed import Signer, Verifier, vouch
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, Denied, LinkUp, Will
from wire.messages import AggregatorStatus
from wire.topics import TABLE, Kind, OfHelper, Topics, client_name, helper_name, mosquitto_acl

ROOT = Path(__file__).parents[2]
DEPLOYED = ROOT / "deploy" / "mosquitto"
TOPICS, DIGEST = Topics("default"), "0" * 64
AGGREGATOR = client_name("default", "aggregator")


def concrete(kind: Kind, device_id: str) -> str:
    """A topic of the table: of this device, of a helper whose name begins with the device's id, or
    the one topic of its kind that the tests use."""
    party = helper_name(device_id) if kind in get_args(OfHelper) else device_id
    return TOPICS.of_kind(kind, party).replace("+", DIGEST)


EVERY = sorted(
    {concrete(row.kind, device_id) for row in TABLE for device_id in ("device-1", "device-2")}
)
READ = {concrete(row.kind, "device-1") for row in TABLE if "device" in row.readers}
WRITTEN = {concrete(row.kind, "device-1") for row in TABLE if row.writer == "device"}


@dataclass
class Guarded:
    """The broker, and links to it that show a certificate."""

    port: int
    authority: trustme.CA
    folder: Path
    links: list[MqttLink] = field(default_factory=list)

    def address(
        self, name: str, authority: trustme.CA | None = None, version: str = "5"
    ) -> BrokerAddress:
        """The broker's address with a certificate of this common name; with none if the name is
        empty."""
        authority = authority or self.authority
        authority.cert_pem.write_to_path(self.folder / "own-ca.pem")
        own: tuple[Path | None, Path | None] = (None, None)
        if name:
            issued = authority.issue_cert("client.example", common_name=name)
            issued.private_key_pem.write_to_path(self.folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
            own = (self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return BrokerAddress.parse(
            f"mqtts://localhost:{self.port}?version={version}", self.folder / "own-ca.pem", *own
        )

    def connect(
        self,
        name: str,
        client_id: str = "",
        *,
        version: str = "5",
        will: Will | None = None,
        confirmed: bool = False,
        persistent: bool = True,
    ) -> MqttLink:
        """A link of the client with this certificate, which calls itself `client_id`."""
        address = self.address(name, version=version)
        self.links.append(
            MqttLink(address, client_id or name, will, confirmed=confirmed, persistent=persistent)
        )
        return self.links[-1]


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Callable[[str], Guarded]]:
    """Starts Mosquitto with the deployed configuration, but for paths and the port, and what is
    added to it."""
    binary = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if binary is None:
        pytest.skip("Mosquitto is not installed: apt-get install mosquitto would run this")
    processes: list[subprocess.Popen[bytes]] = []
    links: list[MqttLink] = []

    def start(added: str = "", access_list: Path | None = DEPLOYED / "shoal.acl") -> Guarded:
        authority, port = trustme.CA(), free_port()
        server = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        server.private_key_pem.write_to_path(tmp_path / "broker.key")
        server.cert_chain_pems[0].write_to_path(tmp_path / "broker.pem")
        text = (DEPLOYED / "mosquitto.conf").read_text()
        text = text.replace("/etc/mosquitto/certs/", f"{tmp_path}/").replace(
            "/var/lib/mosquitto/", f"{tmp_path}/"
        )
        text = text.replace("listener 8883", f"listener {port} 127.0.0.1")
        text = text.replace(
            "acl_file /etc/mosquitto/shoal.acl", f"acl_file {access_list}" if access_list else ""
        )
        (tmp_path / "m.conf").write_text(f"user root\n{text}\n{added}\n")
        with (tmp_path / "m.log").open("wb") as log:
            processes.append(
                subprocess.Popen([binary, "-c", str(tmp_path / "m.conf")], stdout=log, stderr=log)
            )
        wait_for_port(port)
        return Guarded(port, authority, tmp_path, links)

    yield start
    for link in links:
        link.close(patience_s=0.1)
    stop_processes(processes)


@pytest.fixture
def guarded(guard: Callable[[], Guarded]) -> Guarded:
    return guard()


def test_the_table_is_that_of_the_specification() -> None:
    section = (ROOT / "wire" / "SPEC.md").read_text().split("\n## Topics\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| `(?:device/ID/|helper/NAME/)?([a-z-]+)(?:/SHA256)?` \| ([^|]+) \| ([^|]+) \|",
        section,
        re.MULTILINE,
    )
    told = [
        (
            kind,
            re.findall("device|helper|aggregator", writer)[0],
            re.findall("device|helper|aggregator", readers),
            "retained" in writer,
        )
        for kind, writer, readers in rows
    ]
    assert told == [(row.kind, row.writer, list(row.readers), row.retained) for row in TABLE]


def test_the_deployed_access_list_is_the_one_that_is_made() -> None:
    assert (DEPLOYED / "shoal.acl").read_text() == mosquitto_acl("default")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_helper_reads_its_requests_and_writes_its_answers_alone(
    guarded: Guarded, version: str
) -> None:
    aggregator, other = guarded.connect(AGGREGATOR), guarded.connect("device-2")
    hostile = guarded.connect(helper_name("north"), version=version)
    topics = [concrete(row.kind, party) for row in TABLE for party in ("north", "device-2")]
    for link in (aggregator, hostile):
        link.subscribe("#", *topics)
    settle(aggregator, hostile)
    for topic in topics:
        hostile.publish(topic, b"x")
    answers = {TOPICS.helper("north", "answer")}
    assert {d.topic for d in deliveries(aggregator, 9, patience_s=1)} == answers
    for row in TABLE:
        writer = {"device": other, "aggregator": aggregator}.get(row.writer)
        for party in ("north", "device-2"):
            if writer:
                writer.publish(concrete(row.kind, party), b"x")
    readable = {TOPICS.helper("north", "request"), TOPICS.blob(DIGEST), TOPICS.aggregator}
    assert {d.topic for d in deliveries(hostile, 9, patience_s=1)} == readable


@pytest.mark.parametrize("fleet", ["a/b", "+", "", "x\ntopic readwrite #"])
def test_no_name_of_a_fleet_gets_rules_of_its_own(fleet: str) -> None:
    with pytest.raises(ConfigError, match="fleet name"):
        mosquitto_acl(fleet)


@pytest.mark.representatives("5-True")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_hostile_device_writes_only_what_the_table_allows(
    guarded: Guarded, retain: bool, version: str
) -> None:
    watchers = {name: guarded.connect(name) for name in (AGGREGATOR, "device-2")}
    for watcher in watchers.values():
        watcher.subscribe("#")
    settle(*watchers.values())
    hostile = guarded.connect("device-1", version=version)
    settle(hostile)
    for topic in EVERY:
        hostile.publish(topic, topic.encode(), retain=retain)
    expected = [Delivery(topic, topic.encode()) for topic in sorted(WRITTEN)]
    assert (
        sorted(deliveries(watchers[AGGREGATOR], len(EVERY), patience_s=1.5), key=lambda d: d.topic)
        == expected
    )
    assert deliveries(watchers["device-2"], 1, patience_s=0.3) == []
    later = guarded.connect("device-2", version=version)
    later.subscribe(*EVERY)
    assert deliveries(later, 1, patience_s=0.5) == [], "nothing is kept for other devices either"


@pytest.mark.representatives("5-True")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_hostile_device_reads_only_what_the_table_allows(
    guarded: Guarded, retain: bool, version: str
) -> None:
    aggregator, other, hostile = (
        guarded.connect(AGGREGATOR),
        guarded.connect("device-2"),
        guarded.connect("device-1", version=version),
    )
    if not retain:
        hostile.subscribe("#", *EVERY)
    settle(aggregator, other, hostile)
    for row in TABLE:
        for device_id in ("device-1", "device-2"):
            if row.writer == "aggregator":
                aggregator.publish(concrete(row.kind, device_id), b"x", retain=retain)
        if row.writer == "device":
            other.publish(concrete(row.kind, "device-2"), b"x", retain=retain)
    settle(aggregator, other)
    if retain:
        hostile.subscribe("#", *EVERY)
    assert {d.topic for d in deliveries(hostile, 100, patience_s=1.5)} == READ


def test_the_aggregator_clears_what_a_device_had_retained(guarded: Guarded) -> None:
    hostile, aggregator = guarded.connect("device-1"), guarded.connect(AGGREGATOR)
    settle(hostile, aggregator)
    for topic in WRITTEN:
        hostile.publish(topic, bytes(10_000), retain=True)
    settle(hostile)
    FleetLink(aggregator, TOPICS, "boot").clear("device-1")
    events = [aggregator.receive(timeout_s=0.3) for _ in range(3 * len(WRITTEN))]
    assert not [event for event in events if isinstance(event, Denied)]
    later = guarded.connect(AGGREGATOR, version="3.1.1", persistent=False)
    later.subscribe(*TOPICS.from_devices)
    assert deliveries(later, 1, patience_s=1.0) == []


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("victim", [AGGREGATOR, "device-2"])
def test_nobody_takes_a_session_by_its_client_id(
    guarded: Guarded, version: str, victim: str
) -> None:
    topic = concrete("check-in" if victim == AGGREGATOR else "plan", "device-2")
    writer = guarded.connect("device-2" if victim == AGGREGATOR else AGGREGATOR)
    owner = guarded.connect(victim)
    owner.subscribe(topic)
    settle(owner)
    hostile = guarded.connect("device-1", victim, version=version, persistent=False)
    hostile.subscribe(topic)
    settle(hostile)
    writer.publish(topic, b"for the owner")
    assert owner.receive(timeout_s=3) == Delivery(topic, b"for the owner"), (
        "it was never disconnected"
    )
    assert deliveries(hostile, 1, patience_s=0.5) == []
    owner.close()
    writer.publish(topic, b"while it was away")
    settle(writer)
    assert (
        deliveries(guarded.connect("device-1", victim, version=version), 1, patience_s=0.5) == []
    ), "a session is not taken over either"
    assert deliveries(guarded.connect(victim), 1) == [Delivery(topic, b"while it was away")]


def test_no_will_says_what_its_client_may_not(guarded: Guarded) -> None:
    watcher = guarded.connect(AGGREGATOR)
    watcher.subscribe(TOPICS.aggregator, *TOPICS.from_devices)
    settle(watcher)
    for topic in (
        TOPICS.aggregator,
        concrete("status", "device-2"),
        concrete("status", "device-1"),
    ):
        try:
            hostile = guarded.connect("device-1", will=Will(topic, b"gone"))
        except LinkError:
            continue
        settle(hostile)
        hostile._closing = True
        hostile._client.loop_stop()
        known(hostile._client.socket()).close()
    assert deliveries(watcher, 3, patience_s=1.5) == [
        Delivery(concrete("status", "device-1"), b"gone")
    ]


def test_a_publication_that_is_denied_is_told_on_mqtt_5(guarded: Guarded) -> None:
    hostile = guarded.connect("device-1")
    settle(hostile)
    for topic in EVERY:
        hostile.publish(topic, b"x")
    told = {event for _ in EVERY if (event := hostile.receive(timeout_s=1)) is not None}
    assert told == {Denied("publish", topic) for topic in set(EVERY) - WRITTEN}


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_subscription_that_is_denied_is_told(
    guard: Callable[..., Guarded], tmp_path: Path, version: str
) -> None:
    """Mosquitto's access list filters what is read; its dynamic security denies the subscription
    itself."""
    plugin = next(Path("/usr/lib").rglob("mosquitto_dynamic_security.so"), None)
    if plugin is None:
        pytest.skip(
            "Mosquitto has no dynamic security here: apt-get install mosquitto would run this"
        )
    rule = {
        "acltype": "subscribeLiteral",
        "topic": TOPICS.aggregator,
        "priority": 0,
        "allow": False,
    }
    rights = ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
    settings = {
        "defaultACLAccess": dict.fromkeys(rights, True),
        "roles": [{"rolename": "device", "acls": [rule]}],
        "clients": [{"username": "device-1", "roles": [{"rolename": "device", "priority": 0}]}],
    }
    (tmp_path / "security.json").write_text(json.dumps(settings))
    security = f"plugin {plugin}\nplugin_opt_config_file {tmp_path}/security.json"
    link = guard(security, None).connect("device-1", version=version)
    settle(link)
    plan = TOPICS.device("device-1", "plan")
    link.subscribe(plan, TOPICS.aggregator)
    assert link.receive(timeout_s=3) == Denied("subscribe", TOPICS.aggregator)
    link.publish(plan, b"the other subscription is in place")
    assert deliveries(link, 1) == [Delivery(plan, b"the other subscription is in place")]


def test_wrong_authority_is_refused(guarded: Guarded) -> None:
    with pytest.raises(LinkError, match="TLS failed"):
        MqttLink(guarded.address("device-1", trustme.CA()), "a")


def test_without_a_certificate_there_is_no_connection(guarded: Guarded) -> None:
    with pytest.raises(
        LinkError, match=r"does it ask for a certificate \(--cert, --key\)\?|TLS failed"
    ):
        MqttLink(guarded.address(""), "a", wait_s=1)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_second_aggregator_with_the_same_certificate_sees_that_the_first_is_alive(
    guarded: Guarded, version: str
) -> None:
    """To look, it has to take over the first one's session for a moment: no will is published, and
    what waits in the session stays."""
    root, key = new_key(), new_key()
    sign = Signer(key, vouch(root, "default", key.public_key(), time.time() + 1000))
    live = guarded.connect(
        AGGREGATOR,
        version=version,
        confirmed=True,
        will=Will(TOPICS.aggregator, sign(status("live", online=False))),
    )
    live.subscribe(*TOPICS.from_devices, TOPICS.aggregator)
    device, over = guarded.connect("device-1"), threading.Event()
    seen: list[Delivery] = []
    update = Delivery(concrete("update", "device-1"), b"not confirmed yet")

    def work() -> None:
        last_s = 0.0
        while not over.is_set():
            event = live.receive(timeout_s=0.2)
            if isinstance(event, Delivery):
                seen.append(event)
            if isinstance(event, LinkUp) or time.monotonic() > last_s + 5:
                live.publish(TOPICS.aggregator, sign(status("live")), retain=True)
                last_s = time.monotonic()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        settle(device)
        device.publish(update.topic, update.payload)
        wait_until(lambda: update in seen)
        verifier = Verifier("default", (root.public_key(),))
        with pytest.raises(OtherAggregator, match=r"another aggregator is at work \(epoch 7"):
            find_epoch(
                lambda: guarded.connect(AGGREGATOR, version=version, confirmed=True),
                TOPICS,
                verifier,
                0,
                ["other"],
                time.time(),
                False,
            )
        wait_until(lambda: seen.count(update) >= 2)  # it comes again
    finally:
        over.set()
        worker.join()
    statuses = [
        verifier.open(d.payload, AggregatorStatus, time.time())
        for d in seen
        if d.topic == TOPICS.aggregator
    ]
    assert {s.online for s in statuses} == {True}


def test_a_service_with_another_fleets_certificate_ends(
    guarded: Guarded, exported: Exported, tmp_path: Path
) -> None:
    """Its client id on the broker is its certificate's name: the connection that it takes is that
    of the other fleet's aggregator."""
    live = guarded.connect(AGGREGATOR)
    settle(live)
    settings = ServeSettings(
        folder=tmp_path / "served",
        bundle=exported.folder,
        broker=guarded.address(AGGREGATOR),
        fleet="other",
        algorithm=read_algorithm("distfl"),
        http_port=free_port(),
    )
    end_s = time.monotonic() + 60
    with pytest.raises(
        WrongFleet,
        match=r"this client publish shoal/1/other/aggregator \(Not authorized\)\. Is --fleet other",
    ):
        serve(settings, lambda: time.monotonic() > end_s)
    settle(live)


def status(boot_id: str, online: bool = True) -> AggregatorStatus:
    return AggregatorStatus(online, boot_id, 7, time.time(), "run")
