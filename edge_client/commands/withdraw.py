"""`shoal-edge withdraw`: the owner takes back the consent (SPEC.md, 'Withdrawal').

The aggregator receives the withdrawal and confirms it.
"""

import argparse
import secrets
import time
from collections.abc import Sequence

from edge_client.agent.inbox import Inbox
from edge_client.core.backoff import AggregatorTime
from edge_client.options import broker_address, trusted_keys
from edge_client.storage.state import only_process
from wire.codec import digest, encode
from wire.errors import LinkError, WireError
from wire.identity.keys import PublicKey
from wire.links.mqtt import MqttLink
from wire.links.port import Delivery, Link, Will
from wire.messages import PLAN_BYTES, Acknowledge, AggregatorStatus, DeviceStatus
from wire.topics import Topics

RANDOM_BYTES = 16


def said_by(device_id: str) -> bytes:
    """Return the status message of a device that withdraws. Its bytes differ in every call."""
    return encode(DeviceStatus(device_id, online=False, withdrawn=secrets.token_hex(RANDOM_BYTES)))


def tell(
    link: Link,
    topics: Topics,
    device_id: str,
    payload: bytes,
    trusted: Sequence[PublicKey],
    wait_s: float,
) -> bool:
    """Publish the withdrawal `payload`; return True if the aggregator confirms it in time.

    The wait is at most `wait_s` seconds. The broker retains the message in any case: an aggregator
    that is offline receives it when it returns.

    Raises:
        LinkError: the broker refuses this device.
    """
    clock = AggregatorTime(time.monotonic)
    inbox = Inbox(device_id, topics, trusted, lambda: max(time.time(), clock.now_s), PLAN_BYTES)
    link.subscribe(topics.device(device_id, "reply"), topics.aggregator)
    link.publish(topics.device(device_id, "status"), payload, retain=True)
    end_s = time.monotonic() + wait_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.receive(left_s)
        if not isinstance(event, Delivery):
            continue
        try:
            message = inbox.open(event)
        except WireError:
            continue  # another topic, or a message that cannot be verified
        if isinstance(message, AggregatorStatus):
            clock.hear(message)
        elif isinstance(message, Acknowledge) and message.update == digest(payload):
            return True
    return False


def withdraw(arguments: argparse.Namespace) -> int:
    """Withdraw this device; return 0 if the aggregator has confirmed it, else 1.

    Raises:
        ShoalError: an argument or the broker cannot be used, or the client is running.
    """
    trusted, address, topics = (
        trusted_keys(arguments),
        broker_address(arguments),
        Topics(arguments.fleet),
    )
    end_s, withdrawal = time.monotonic() + arguments.wait, said_by(arguments.id)
    with only_process(arguments.state):
        # The will is the same message: a broken connection must not replace the withdrawal.
        will = Will(topics.device(arguments.id, "status"), withdrawal)
        try:
            link = MqttLink(
                address, f"{arguments.fleet}.{arguments.id}", will, wait_s=arguments.wait
            )
        except LinkError as error:
            print(f"not confirmed: {error}")
            return 1
        try:
            confirmed = tell(
                link, topics, arguments.id, withdrawal, trusted, max(1.0, end_s - time.monotonic())
            )
        finally:
            link.close()
    print(
        "confirmed: this device gets no assignments until it runs again"
        if confirmed
        else "not confirmed: the aggregator did not answer"
    )
    return 0 if confirmed else 1
