"""Changed bytes, and which errors they may bring about."""

import random
from collections.abc import Callable

from wire.errors import WireError

TOKENS = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"9" * 400,
        b"\\u0000",
        b"\\ud800",
        b"0.5",
    ),
    *(
        b'"type":"plan",',
        b"[[[[[[[[",
        b"-0",
        b"1E-400",
        b"\0",
        b"\xc3\xa9",
        b"18446744073709551616",
        b"2147483649",
    ),
    b'"shape":[4294967296,4294967296],',
]


def changed(original: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four changes: a byte, a bit, a cut, a piece of it doubled, removed or
    overwritten, a token put in."""
    payload = bytearray(original)
    for _ in range(rng.randint(1, 4)):
        if not payload:
            break
        at = rng.randrange(len(payload))
        end = min(len(payload), at + rng.randrange(17))
        match rng.randrange(8):
            case 0 | 1:
                payload[at] = rng.randrange(256)
            case 2:
                payload[at] ^= 1 << rng.randrange(8)
            case 3:
                del payload[at:]
            case 4:
                payload[at:at] = payload[at:end]
            case 5:
                del payload[at:end]
            case 6:
                payload[at:end] = rng.randbytes(end - at)
            case _:
                payload[at:at] = rng.choice(TOKENS)
    return bytes(payload)


def refuses(read: Callable[..., object], *arguments: object) -> bool:
    """Return True if a reader raises a `WireError`."""
    try:
        read(*arguments)
    except WireError:
        return True
    return False
