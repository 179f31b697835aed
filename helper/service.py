"""A helper's loop: a request comes, the ledger is written, an answer goes."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helper.core.ledger import SetRefused, UnusableShare
from helper.core.sums import (
    Rules,
    agreement,
    all_agree,
    check_set,
    share_check,
    sum_masks,
    unusable_in,
)
from helper.metrics import HelperMetrics
from helper.storage import HelperFolder
from host.files import file_error
from host.logs import alive
from wire.errors import ConfigError, LimitExceeded, WireError
from wire.fields import LONGEST_TEXT
from wire.identity.certificates import TlsPublicKey, read_public_key
from wire.identity.keys import PublicKey
from wire.identity.signed import Verifier
from wire.links.port import Delivery, Denied, Link, LinkDown, LinkUp
from wire.secret.messages import Answer, Shares, SumRefusal, SumRequest
from wire.secret.payloads import decode_request, encode_answer, seal_sums
from wire.secret.roster import read_roster
from wire.topics import Topics

log = logging.getLogger("shoal.helper")


def read_devices(
    roster: Path, fleet: str, trusted: Sequence[PublicKey]
) -> Mapping[str, TlsPublicKey]:
    """Return the keys of the devices in a roster's file.

    Raises:
        ConfigError: it cannot be read, or no root key signed it for this fleet.
    """
    try:
        return read_roster(roster.read_bytes(), fleet, trusted)
    except OSError as error:
        raise ConfigError(file_error(f"--roster {roster}", error)) from None
    except WireError as error:
        raise ConfigError(f"--roster {roster}: {error}") from None


@dataclass
class HelperService:
    """A helper at work on a link."""

    folder: HelperFolder
    link: Link
    trusted: tuple[PublicKey, ...]
    """Root keys: they vouch for the aggregator's key, and sign the roster."""
    roster: Path
    min_sum: int
    metrics: HelperMetrics

    def __post_init__(self) -> None:
        identity = self.folder.identity
        topics = Topics(identity.fleet)
        self._verifier = Verifier(identity.fleet, self.trusted)
        self._answers = topics.helper(identity.name, "answer")
        self.link.subscribe(topics.helper(identity.name, "request"))

    def run(self, stop: Callable[[], bool]) -> None:
        """Answer requests until `stop` returns True.

        Raises:
            OSError: the ledger cannot be written.
        """
        while not stop():
            alive()
            match self.link.receive(timeout_s=0.5):
                case Delivery(retained=False) as delivery:
                    self._serve(delivery.payload)
                case LinkUp():
                    self.metrics.is_connected = True
                    log.info("Connected to the broker: fleet=%s", self.folder.identity.fleet)
                case LinkDown(reason):
                    self.metrics.is_connected = False
                    log.warning("Connection to the broker lost: %s", reason)
                case Denied(action, topic, reason):
                    log.warning(
                        "The broker did not permit this helper to %s %s: %s", action, topic, reason
                    )

    def _serve(self, payload: bytes) -> None:
        try:
            request, shares = decode_request(payload, self._verifier, time.time())
        except WireError as error:
            log.warning("Request ignored: %s", error)
            self.metrics.count(None)
            return
        try:
            answer, sealed = self._answer(request, shares)
        except SetRefused as error:
            answer, sealed = self._refusal(request, str(error)), b""
        except WireError as error:
            answer, sealed = self._refusal(request, f"untrusted: {error}"), b""
        except ConfigError as error:
            log.error("Roster not read: %s", error)
            text = "unknown-device: the helper cannot read its roster"
            answer, sealed = self._refusal(request, text), b""
        try:
            self._send(answer, sealed)
        except LimitExceeded as error:
            self._send(self._refusal(request, f"too-large: {error}"), b"")

    def _send(self, answer: Answer, sealed: bytes) -> None:
        self.link.publish(self._answers, encode_answer(answer, self.folder.key, sealed))
        self.metrics.count(answer)

    def _answer(self, request: SumRequest, shares: Shares) -> tuple[Answer, bytes]:
        devices = read_devices(self.roster, self.folder.identity.fleet, self.trusted)
        rules = Rules(self.folder.key, devices, self.min_sum)
        try:
            members = check_set(request, shares, self.folder.ledger, rules)
        except UnusableShare:
            if not request.check:
                raise
            unusable = unusable_in(request, shares, rules)
            log.warning(
                "Shares not usable: question=%s devices=%s",
                request.question.digest[:12],
                ", ".join(unusable),
            )
            return share_check(request, rules, unusable), b""
        if request.check:
            return share_check(request, rules), b""
        may_open = all_agree(request, rules)
        if members is not None:
            self.folder.agree(
                request.question.digest, request.set, members, request.question.min_sum
            )
            log.info(
                "Agreed to a set: question=%s devices=%d", request.question.digest[:12], len(shares)
            )
        if not may_open:
            return agreement(request, rules), b""
        begin_s = time.monotonic()
        answer, sums = sum_masks(request, shares, rules)
        self.metrics.sum_s = time.monotonic() - begin_s
        log.info("Masks summed: question=%s devices=%d", request.question.digest[:12], len(shares))
        return answer, seal_sums(sums, read_public_key(request.seal_to), request.set)

    def _refusal(self, request: SumRequest, problem: str) -> SumRefusal:
        log.warning(
            "Request refused: question=%s problem=%s", request.question.digest[:12], problem
        )
        name = self.folder.identity.key
        return SumRefusal(name, request.question.digest, problem[:LONGEST_TEXT])
