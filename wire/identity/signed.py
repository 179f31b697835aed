"""Signed messages from an aggregator, and their verification by devices (SPEC.md, 'Signatures').

A signed message has four lines: the message, its signature by a service key, the voucher for that
key, and the voucher's signature by a root key that the device trusts. The root key can stay
offline; a service needs its own key and the last two lines.
"""

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from wire.codec import decode, encode
from wire.errors import BundleError, Malformed, Untrusted
from wire.identity.keys import PrivateKey, PublicKey, key_name, public_key, verifies
from wire.messages import Voucher

MESSAGE_CONTEXT, VOUCHER_CONTEXT = b"shoal/1 message\n", b"shoal/1 voucher\n"
"""Prefixes of signed texts, so that no signature is valid for another purpose."""

Sign = Callable[[msgspec.Struct], bytes]
"""Function that turns an aggregator's message into bytes."""


def vouch(root: PrivateKey, fleet: str, key: PublicKey, not_after_s: float) -> bytes:
    """Return a voucher for a service key and its signature by the root key: two lines."""
    text = encode(Voucher(fleet, key_name(key), not_after_s))
    return text + b"\n" + base64.b64encode(root.sign(VOUCHER_CONTEXT + text))


@dataclass(frozen=True)
class Signer:
    """Service key, with the two lines that vouch for it."""

    key: PrivateKey
    voucher: bytes

    @property
    def until_s(self) -> float:
        """End of the voucher's validity, in Unix seconds."""
        voucher: Voucher = decode(self.voucher.partition(b"\n")[0], Voucher)
        return voucher.not_after_s

    def __call__(self, message: msgspec.Struct) -> bytes:
        text = encode(message)
        return b"\n".join(
            (text, base64.b64encode(self.key.sign(MESSAGE_CONTEXT + text)), self.voucher)
        )


@dataclass
class Verifier:
    """Verifier of messages from one fleet's aggregator.

    Without trusted keys, every message is accepted, signed or not.
    """

    _fleet: str
    _trusted: Sequence[PublicKey]
    _verified: tuple[bytes, Voucher] | None = None
    """Last verified voucher."""

    def open(self, payload: bytes, kind: Any, now_s: float) -> Any:
        """Return the verified message of `kind`, a message class or a union of them.

        `now_s`: Unix time, as accurate as the reader has it.

        Raises:
            LimitExceeded, Malformed: as `wire.codec.decode`; or the lines are neither one nor four.
            Untrusted: not signed by a key that a trusted one has vouched for, for this fleet and
                this time.
        """
        lines = payload.split(b"\n", 4)
        if len(lines) not in (1, 4):
            raise Malformed(
                f"signed message of {len(payload)} bytes: {len(lines)} lines, expected 4"
            )
        if not self._trusted:
            return decode(lines[0], kind)
        if len(lines) == 1:
            raise Untrusted("message: not signed")
        text, signature, *vouched = lines
        voucher = self.voucher(b"\n".join(vouched), now_s)
        try:
            key = public_key(bytes.fromhex(voucher.key))
        except BundleError:
            raise Untrusted(f"voucher: {voucher.key[:12]} is not an Ed25519 public key") from None
        if not verifies(key, _signature(signature), MESSAGE_CONTEXT + text):
            raise Untrusted(
                f"message: its signature was not made with the voucher's key {voucher.key[:12]}"
            )
        return decode(lines[0], kind)

    def voucher(self, vouched: bytes, now_s: float) -> Voucher:
        """Return a verified voucher from its two lines: the voucher and its signature.

        Raises:
            Malformed: not two lines, or no voucher.
            Untrusted: not signed by a trusted key, for another fleet, or out of date.
        """
        if self._verified is None or self._verified[0] != vouched:
            text, _, signature = vouched.partition(b"\n")
            if not any(
                verifies(key, _signature(signature), VOUCHER_CONTEXT + text)
                for key in self._trusted
            ):
                raise Untrusted("voucher: its signature was not made with a trusted key")
            self._verified = vouched, decode(text, Voucher)
        voucher = self._verified[1]
        if voucher.fleet != self._fleet:
            raise Untrusted(f"voucher: it is for the fleet {voucher.fleet}, not {self._fleet}")
        if not now_s <= voucher.not_after_s:
            over_s, clock = now_s - voucher.not_after_s, f"this machine's time is {utc(now_s)}"
            raise Untrusted(
                f"voucher: it ended {over_s:.0f} s ago, at {utc(voucher.not_after_s)}; {clock}"
            )
        return voucher

    def until_s(self, payload: bytes) -> float:
        """Return the end of the validity of a message's voucher, in Unix seconds.

        It is infinite if no voucher is required.

        Raises:
            Malformed, Untrusted: as `voucher`, except for the time.
        """
        if not self._trusted:
            return math.inf
        return self.voucher(payload.partition(b"\n")[2].partition(b"\n")[2], -math.inf).not_after_s


def utc(at_s: float) -> str:
    """Return a time as text to the minute, from Unix seconds of any source."""
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_s:g} s after 1970"


def _signature(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Malformed(f"signature of {len(text)} characters: not base64") from None
