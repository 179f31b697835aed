"""Rules of enrolment and renewal: who gets a certificate (SPEC.md, 'Enrolment').

A request changes the database in one transaction, which also stores its answer. A repeated request,
after a lost answer or a killed process, gets the same answer; a token serves one key only.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from aggregator.enrolment.attestation import NotAttested, PlayIntegrity
from aggregator.enrolment.authority import DEVICE_DAYS, Authority
from aggregator.storage.enrolment_store import (
    AuditRow,
    DeviceRow,
    EnrolmentStore,
    TokenRow,
    Transaction,
)
from wire.errors import ConfigError, WireError, printable
from wire.identity.certificates import (
    TlsPublicKey,
    certificate_pem,
    check_issued,
    check_time,
    has_signed,
    key_digest,
    public_key_of,
    read_certificate,
    read_request,
)
from wire.identity.enrolment import (
    Answer,
    Enrol,
    Enrolled,
    Reason,
    Refused,
    Renew,
    Renewed,
    Waiting,
    attestation_nonce,
    read_token,
    renewal_text,
)
from wire.topics import check_name

log = logging.getLogger("shoal.enrolment")

RETRY_S = 10.0
"""Seconds after which a device that waits for approval asks again."""


@dataclass(frozen=True)
class FleetSettings:
    """Settings that every enrolled device gets together with its certificate."""

    broker: str
    trust: str
    policy: str = ""


@dataclass(eq=False)
class _No(Exception):
    """Refusal of a request, with its reason."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Office:
    """Decisions on enrolment and renewal. Any thread may call it."""

    authority: Authority
    store: EnrolmentStore
    offer: FleetSettings
    clock: Callable[[], float] = time.time
    days: float = DEVICE_DAYS
    """Number of days for which a device's certificate is valid."""
    is_known: Callable[[str], bool] = lambda _device_id: False
    """Returns True if the registry has the device of an id. It raises `StorageFailed`.

    A device in the registry may have tags from an operator.
    """
    attester: PlayIntegrity | None = None
    """Checker of attestations of app and phone; None if nothing is attested."""

    def answer(self, request: Enrol | Renew, peer: str) -> Answer:
        """Answer a request.

        `peer`: address of the requester, for the log.

        Raises:
            StorageFailed: the database cannot be read or written; nothing has changed.
        """
        what = "enrol" if isinstance(request, Enrol) else "renew"
        try:
            with self.store.transaction() as within:
                answer, device_id = (
                    self._enrol(within, request)
                    if isinstance(request, Enrol)
                    else self._renew(within, request)
                )
        except _No as no:
            message = "Request refused: request=%s from=%s reason=%s: %s"
            log.warning(message, what, peer, no.reason, no.detail)
            return Refused(no.reason, printable(no.detail))
        # a device that waits for approval asks again every few seconds
        level = logging.DEBUG if isinstance(answer, Waiting) else logging.INFO
        outcome = answer.__struct_config__.tag
        log.log(level, "Request answered: answer=%s device=%s from=%s", outcome, device_id, peer)
        return answer

    def _enrol(self, within: Transaction, request: Enrol) -> tuple[Answer, str]:
        key, wanted = _requested(request.request)
        try:
            token = next(iter(within.rows(TokenRow, hash=read_token(request.token).hash)), None)
        except ConfigError as error:
            raise _No("token", str(error)) from None
        if token is None:
            raise _No("token", "this service did not make this token, or it expired long ago")
        digest = key_digest(key)
        if token.used_key not in ("", digest):
            raise _No("used", f"{token.used_by} has used this token, with another key")
        if not token.used_key and self.clock() > token.expires_at_s:
            raise _No(
                "expired", f"this token expired {self.clock() - token.expires_at_s:.0f} s ago"
            )
        # A repeated request was attested the first time, and its attestation is too old by now.
        attester = self.attester if not token.used_key else None
        if attester is not None and {*token.tags}.isdisjoint(attester.settings.exempt_tags):
            try:
                nonce = attestation_nonce(read_token(request.token), digest)
                attester.check(request.attestation, nonce)
            except NotAttested as error:
                raise _No("attestation", str(error)) from None
        device_id = token.used_by or token.device_id or wanted or f"device-{digest[:12]}"
        if wanted not in ("", device_id):
            raise _No("other-name", f"this token is for {device_id}, not for {wanted}")
        _check_ban(within, device_id)
        device = self._take(within, token, device_id, digest)
        if device.state == "rejected":
            raise _No("rejected", f"the operator rejected {device_id}")
        if device.state == "waiting":
            return Waiting(device_id, RETRY_S), device_id
        if device.state == "approved":
            device = self._issue(within, device, key, "enrolled")
        return (
            Enrolled(
                device_id,
                self.authority.fleet,
                self.offer.broker,
                device.certificate,
                certificate_pem(self.authority.certificate),
                self.offer.trust,
                self.offer.policy,
            ),
            device_id,
        )

    def _take(self, within: Transaction, token: TokenRow, device_id: str, digest: str) -> DeviceRow:
        """Bind a token to a key and return the device that uses it.

        The token serves no other key from now on.
        """
        device = within.device(device_id)
        if (
            device is not None
            and device.key != digest
            and (token.used_key or token.device_id != device_id)
        ):
            how = f"`shoal enrol token --device {device_id}` makes a token that may replace it"
            raise _No("taken", f"another device is enrolled as {device_id}; {how}")
        if device is None and token.used_key:
            raise _No(
                "used", f"{device_id} used this token and was forgotten; it needs another token"
            )
        if device is None and token.device_id != device_id and self.is_known(device_id):
            raise _No(
                "taken",
                f"{device_id} is in the registry; `shoal enrol token --device {device_id}` makes "
                "a token for it alone",
            )
        if not within.use_token(token.hash, digest, device_id):
            raise _No("used", "another key has used this token")
        if device is None or device.key != digest:
            state = "waiting" if token.approve else "approved"
            device = DeviceRow(
                device_id, state, digest, token=token.hash, tags=token.tags, since_s=self.clock()
            )
            within.put(device)
            if token.approve:
                within.put(AuditRow(self.clock(), "waiting", device_id, token.hash, ""))
                log.info("Device waits for approval by `shoal enrol approve`: device=%s", device_id)
        return device

    def _renew(self, within: Transaction, request: Renew) -> tuple[Answer, str]:
        key, wanted = _requested(request.request)
        try:
            certificate = read_certificate(request.certificate)
            device_id = check_name(
                check_issued(certificate, self.authority.certificate), "device id"
            )
            old = public_key_of(certificate)
            check_time(certificate, self.clock())
        except (WireError, ConfigError) as error:
            raise _No("malformed", str(error)) from None
        if not has_signed(old, request.signature, renewal_text(request.request)):
            raise _No(
                "malformed", f"the request of {device_id} is not signed by its certificate's key"
            )
        if wanted != device_id:
            raise _No(
                "other-name",
                f"the certificate is of {device_id}, but the request names {wanted or 'nobody'}",
            )
        _check_ban(within, device_id)
        device = within.device(device_id)
        if device is None or device.state != "enrolled":
            raise _No("unknown-device", f"{device_id} is not enrolled; it needs a token")
        before, now = key_digest(old), key_digest(key)
        if before == device.key:
            device = self._issue(
                within,
                msgspec.structs.replace(device, key=now, previous_key=before),
                key,
                "renewed",
            )
        elif (before, now) != (device.previous_key, device.key):
            raise _No(
                "superseded",
                f"the certificate of {device_id} was renewed already, with another key; its key "
                "may have been copied",
            )
        return Renewed(device.certificate), device_id

    def _issue(
        self, within: Transaction, device: DeviceRow, key: TlsPublicKey, what: str
    ) -> DeviceRow:
        certificate = self.authority.issue(key, device.device_id, self.clock(), self.days)
        ends_s = certificate.not_valid_after_utc.timestamp()
        issued = msgspec.structs.replace(
            device, state="enrolled", certificate=certificate_pem(certificate), not_after_s=ends_s
        )
        within.put(issued)
        within.put(
            AuditRow(
                self.clock(),
                what,
                device.device_id,
                device.token,
                f"{certificate.serial_number:x}",
            )
        )
        return issued


def _requested(request: str) -> tuple[TlsPublicKey, str]:
    """Return the public key and the name in a certificate request."""
    try:
        key, name = read_request(request)
        return key, check_name(name, "device id") if name else ""
    except (WireError, ConfigError) as error:
        raise _No("malformed", str(error)) from None


def _check_ban(within: Transaction, device_id: str) -> None:
    if within.is_banned(device_id):
        raise _No("banned", f"{device_id} is banned")
