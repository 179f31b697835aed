"""Bans at the broker, by Mosquitto's plugin for dynamic security: its denials beat the access list.

A ban first denies the device everything from the next packet on. Then the service connects in the
device's name and asks for an empty session, which ends its connection and deletes its queue.
"""

import json
import logging
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from aggregator.enrolment.authority import OPERATOR, Authority, write_pair
from aggregator.ports import StorageFailed
from aggregator.storage.enrolment_store import BanRow, EnrolmentStore
from wire.errors import LinkError, ShoalError
from wire.identity.certificates import new_tls_key
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, LinkUp
from wire.topics import CONTROL, client_name

log = logging.getLogger("shoal.enrolment")

LOOK_S, AGAIN_S = 1.0, 60.0
"""Seconds between two looks for bans, and between two comparisons with the broker's list."""
ANSWER_S = 5.0
HOUR_DAYS = 1 / 24
DENIED = [
    {"acltype": kind, "topic": "#", "priority": 1000, "allow": False}
    for kind in (
        "publishClientSend",
        "publishClientReceive",
        "subscribePattern",
        "unsubscribePattern",
    )
]


class BrokerBans:
    """Thread that keeps banned devices off the broker until it is closed.

    It tries again while the broker cannot be reached, and repeats all bans to a broker that lost
    them.
    """

    def __init__(
        self, authority: Authority, store: EnrolmentStore, broker: BrokerAddress, folder: Path
    ) -> None:
        """Start the thread.

        `folder`: the service's folder. `broker`: address by which the aggregator reaches the
        broker.
        """
        self._authority, self._store = authority, store
        self._broker = replace(
            broker, ca=folder / "ca.pem", certificate=folder / OPERATOR, key=None
        )
        self._role = f"shoal-{authority.fleet}-banned"
        self._told: dict[str, bool] = {}
        self._told_at_s, self._warned = 0.0, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        self._thread.join(timeout=10.0)

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                name = client_name(self._authority.fleet, "operator")
                with closing(
                    MqttLink(self._broker, name, give_up=self._over.is_set, persistent=False)
                ) as link:
                    link.subscribe(f"{CONTROL}/response")
                    self._told_at_s = 0.0
                    while not self._over.wait(LOOK_S):
                        self._look(link)
            except (ShoalError, StorageFailed) as error:
                if str(error) != self._warned:  # log an error once, until it changes
                    self._warned = str(error)
                    log.error("Bans not applied at the broker: %s", error)
                self._over.wait(LOOK_S)
            except Exception:
                log.exception("Bans not applied at the broker")
                self._over.wait(LOOK_S)

    def _look(self, link: MqttLink) -> None:
        """Make the broker's bans those of the database, where they may differ.

        A ban at the broker that the database does not name stays: the database may be restored from
        a backup that is older than the ban.
        """
        while (event := link.receive(timeout_s=0)) is not None:
            if isinstance(event, LinkUp):
                self._told_at_s = 0.0
        with self._store.transaction() as within:
            bans = {row.device_id: not row.lifted for row in within.rows(BanRow)}
        is_told = self._told_at_s and time.monotonic() - self._told_at_s <= AGAIN_S
        if not bans or (bans == self._told and is_told):
            return
        self._order(link, {"command": "createRole", "rolename": self._role, "acls": DENIED})
        clients = (
            self._order(link, {"command": "listClients", "verbose": True})
            .get("data", {})
            .get("clients", [])
        )
        members = {
            client["username"]
            for client in clients
            if self._role in [role["rolename"] for role in client.get("roles", [])]
        }
        usernames = {client["username"] for client in clients}
        for device_id, banned in sorted(bans.items()):
            if banned and device_id not in members:
                roles = [{"rolename": self._role, "priority": 1000}]
                if device_id in usernames:
                    self._order(
                        link,
                        {
                            "command": "addClientRole",
                            "username": device_id,
                            "rolename": self._role,
                            "priority": 1000,
                        },
                    )
                else:
                    self._order(
                        link, {"command": "createClient", "username": device_id, "roles": roles}
                    )
                self._cut(device_id)
                log.info("Device banned at the broker: device=%s", device_id)
            elif not banned and device_id in members:
                self._order(link, {"command": "deleteClient", "username": device_id})
                self._cut(device_id)
                log.info("Ban lifted at the broker: device=%s", device_id)
        self._told, self._told_at_s, self._warned = bans, time.monotonic(), ""

    def _order(self, link: MqttLink, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command to the plugin and return its response.

        Raises:
            LinkError: the plugin does not answer, or refuses.
        """
        link.publish(CONTROL, json.dumps({"commands": [command]}).encode())
        end_s = time.monotonic() + ANSWER_S
        while (left_s := end_s - time.monotonic()) > 0:
            event = link.receive(timeout_s=left_s)
            if not isinstance(event, Delivery):
                continue
            for answer in json.loads(event.payload).get("responses", []):
                if answer.get("command") != command["command"]:
                    continue
                if answer.get("error", "") not in (
                    "",
                    "Role already exists",
                    "Client already exists",
                ):
                    raise LinkError(
                        f"broker: it refused {command['command']} of dynamic security: "
                        f"{answer['error']}"
                    )
                return dict(answer)
        raise LinkError(
            f"broker: no answer to {command['command']} in {ANSWER_S:g} s; it needs its plugin for "
            "dynamic security, and the access list of `shoal acl`"
        )

    def _cut(self, device_id: str) -> None:
        """End a device's connection and session at the broker."""
        key = new_tls_key()
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            pair = Path(folder) / "device.pem"
            write_pair(
                pair,
                key,
                self._authority.issue(key.public_key(), device_id, time.time(), HOUR_DAYS),
            )
            MqttLink(replace(self._broker, certificate=pair), device_id, persistent=False).close()
