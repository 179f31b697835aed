"""Messages that are nearly right: real ones of every topic a device may write, changed in what they
mean or in their bytes."""

import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

from tests.wire.changes import changed
from wire import messages as m
from wire.codec import encode
from wire.topics import FromDevice, Topics

KINDS: tuple[FromDevice, ...] = (
    "check-in",
    "status",
    "update",
    "update",
    "update",
    "update",
    "decline",
    "fetch",
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**53,
        2**53 + 1,
        2**64,
        10**400,
        1e308,
        -0.5,
        "",
        "x",
        "d0",
        "../d0",
        "\0",
        "\ud800",
        "x" * 5000,
    ),
    *([], {}, [[[]]], {"type": "plan"}, "0" * 64, float("nan"), float("inf")),
)
STRANGE_TOPICS = ("", "device", "device//update", "device/x/y/z")
SIZES = (0, 1, 7, 2**16 + 1, 2**20)


MADE_UP: dict[str, m.Message] = {
    "check-in": m.CheckIn(
        "d0", 10, 4, policy=m.Policy(max_epochs=2.0), personal_models=("0" * 64,)
    ),
    "status": m.DeviceStatus("d0", True),
    "decline": m.Decline("r", 1, 1, 0, "d0", "failed", "why"),
    "fetch": m.Fetch("d0", "0" * 64),
}


class Mutation:
    """An endless source of (topic, payload). `seeds` are called for real messages by their topic's
    kind; for a kind that has none, one is made up, but for updates. `ids` are the devices that it
    speaks for, known and unknown."""

    def __init__(
        self,
        seeds: Callable[[], Mapping[str, bytes]],
        fleet: str,
        ids: tuple[str, ...],
        rng: random.Random,
    ) -> None:
        self._topics, self._root, self._ids, self._rng, self._seeds = (
            Topics(fleet),
            f"shoal/1/{fleet}",
            ids,
            rng,
            seeds,
        )

    def message(self) -> tuple[str, bytes]:
        """The next one."""
        rng, kind = self._rng, self._rng.choice(KINDS)
        device_id = rng.choice(self._ids)
        topic = (
            self._topics.device(device_id, kind)
            if rng.random() < 0.97
            else f"{self._root}/{rng.choice(STRANGE_TOPICS)}"
        )
        seeds = {**{name: encode(message) for name, message in MADE_UP.items()}, **self._seeds()}
        seed = seeds[kind if rng.random() < 0.95 else rng.choice(KINDS)]
        if rng.random() < 0.02:
            return topic, rng.randbytes(rng.choice(SIZES))
        header = _header(seed)
        payload = (
            self._of_update(header, seed, device_id)
            if header is not None
            else self._of_text(seed, device_id)
        )
        return topic, changed(payload, rng) if rng.random() < 0.3 else payload

    def _of_text(self, seed: bytes, device_id: str) -> bytes:
        return json.dumps(self._fields(json.loads(seed), device_id)).encode(
            "utf-8", "surrogatepass"
        )

    def _of_update(self, header: dict[str, Any], seed: bytes, device_id: str) -> bytes:
        """A tensor file whose message, table or numbers are changed, or several of these."""
        rng, data = self._rng, bytearray(seed[8 + struct.unpack("<Q", seed[:8])[0] :])
        said = self._fields(json.loads(header["__metadata__"]["shoal"]), device_id)
        header["__metadata__"]["shoal"] = json.dumps(said)
        if rng.random() < 0.4:
            self._change_table(header)
        if rng.random() < 0.3 and len(data) > 4:
            for _ in range(rng.choice((1, 1, 100))):
                at = 4 * rng.randrange(len(data) // 4)
                data[at : at + 4] = struct.pack(
                    "<f",
                    rng.choice(
                        (float("nan"), float("inf"), 3e38, -1e30, 1e-45, 0.0, rng.gauss(0, 1))
                    ),
                )
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        text += b" " * (-len(text) % 8)
        return (
            struct.pack("<Q", rng.choice((len(text),) * 20 + (0, 2**63, len(text) + 8)))
            + text
            + bytes(data)
        )

    def _change_table(self, header: dict[str, Any]) -> None:
        rng, names = self._rng, [name for name in header if name != "__metadata__"]
        name = rng.choice(names)
        entry, other = header[name], header[rng.choice(names)]["data_offsets"]
        match rng.randrange(7):
            case 0:
                entry["dtype"] = rng.choice(("F32", "I64", "U8", "BF16", "F64", "", 3))
            case 1:
                entry["shape"] = rng.choice(
                    (
                        [],
                        [0],
                        [2**40],
                        [-1],
                        [1] * 9,
                        entry["shape"][::-1],
                        [*entry["shape"], 1],
                        "x",
                    )
                )
            case 2:
                entry["data_offsets"] = rng.choice(
                    ([0, 0], [4, 2], [0, 2**60], [-4, 0], [1], other)
                )
            case 3:
                header[
                    rng.choice(
                        (
                            "delta/x",
                            "shared/x",
                            "",
                            "response/evaluate.x",
                            "delta/" + "x" * 300,
                            "X",
                        )
                    )
                ] = header.pop(name)
            case 4:
                del header[name]
            case 5:
                header["__metadata__"] = rng.choice(
                    ({}, {"shoal": ""}, {"shoal": 3}, [], {"shoal": "{}", "more": "x"})
                )
            case 6:
                empty, number = (
                    {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
                    rng.choice((1, 300, 5000)),
                )
                header |= {f"delta/{i}": empty for i in range(number)}

    def _fields(self, message: dict[str, Any], device_id: str) -> dict[str, Any]:
        """Some fields changed, removed or added; the device's id is mostly the topic's."""
        rng = self._rng
        if rng.random() < 0.9:
            message["device_id"] = device_id
        for _ in range(rng.choice((0, 0, 1, 2))):
            name = rng.choice(sorted(message))
            match rng.randrange(5):
                case 0:
                    message.pop(name)
                    message.setdefault("more", rng.choice(VALUES))
                case 1:
                    message[rng.choice(("type", "shape", "policy", "proof", "\ud83d"))] = (
                        rng.choice(VALUES)
                    )
                case 2 if isinstance(message[name], int):
                    message[name] += rng.choice((-1, 1, 1000))
                case _:
                    message[name] = rng.choice(VALUES)
        return message


def _header(payload: bytes) -> dict[str, Any] | None:
    """The table of a tensor file; None for what is none."""
    if payload[:1] == b"{" or len(payload) < 8:
        return None
    size = struct.unpack("<Q", payload[:8])[0]
    found: dict[str, Any] = json.loads(payload[8 : 8 + size])
    return found
