"""The vectors of signed messages: ``signed/TRUST.pem`` and one file a message, whose name says
whether it verifies."""

import base64
from pathlib import Path

import wire
from wire import messages as m
from wire.identity.keys import PrivateKey, public_pem
from wire.identity.signed import Signer, vouch

ROOT = Path(wire.__file__).parent
VECTORS = ROOT / "vectors"
FOLDER = VECTORS / "signed"
A, B = "a" * 64, "b" * 64
RUN = "5f1d7a86c0b94be2a3d8e96f27c41b05"

FLEET, NOW_S = "default", 1795305612.0
"""The reader's fleet, and its time."""
OLD_ROOT, ROOT_KEY, STRANGER, SERVICE, OTHER = (
    PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 6)
)
UNTIL_S = 1826841600.0

PLAN = m.Plan(
    RUN,
    1795305600,
    3,
    0,
    "p01-left",
    A,
    B,
    (m.Train(32, 1, hyper={"lr": 0.01}),),
    3000012,
    1795306200.0,
)
VOUCHED = vouch(ROOT_KEY, FLEET, SERVICE.public_key(), UNTIL_S)
SIGNED = Signer(SERVICE, VOUCHED)(PLAN)


def _changed(line: int, old: bytes, new: bytes) -> bytes:
    lines = SIGNED.split(b"\n")
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    return b"\n".join(lines)


def _without_context() -> bytes:
    text, _, *rest = SIGNED.split(b"\n")
    return b"\n".join((text, base64.b64encode(SERVICE.sign(text)), *rest))


FILES: dict[str, bytes] = {
    "TRUST.pem": public_pem(OLD_ROOT) + public_pem(ROOT_KEY),
    "good-plan": SIGNED,
    "good-by-the-old-root": Signer(OTHER, vouch(OLD_ROOT, FLEET, OTHER.public_key(), UNTIL_S))(
        PLAN
    ),
    "good-acknowledge": Signer(SERVICE, VOUCHED)(m.Acknowledge("p01-left", A)),
    "bad-unsigned": SIGNED.split(b"\n")[0],
    "bad-two-lines": b"\n".join(SIGNED.split(b"\n")[:2]),
    "bad-five-lines": SIGNED + b"\n",
    "bad-round-changed": _changed(0, b'"round":3', b'"round":4'),
    "bad-until-changed": _changed(2, b"1826841600", b"1926841600"),
    "bad-signature-not-base64": _changed(1, SIGNED.split(b"\n")[1][:4], b"*-*-"),
    "bad-signature-short": _changed(1, SIGNED.split(b"\n")[1], b"QQ=="),
    "bad-signature-without-context": _without_context(),
    "bad-voucher-by-a-stranger": Signer(
        SERVICE, vouch(STRANGER, FLEET, SERVICE.public_key(), UNTIL_S)
    )(PLAN),
    "bad-by-another-key-than-vouched-for": Signer(OTHER, VOUCHED)(PLAN),
    "bad-of-another-fleet": Signer(
        SERVICE, vouch(ROOT_KEY, "other", SERVICE.public_key(), UNTIL_S)
    )(PLAN),
    "bad-out-of-date": Signer(SERVICE, vouch(ROOT_KEY, FLEET, SERVICE.public_key(), NOW_S - 1))(
        PLAN
    ),
}
