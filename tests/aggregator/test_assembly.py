"""Harm that devices can do to the service with updates in pieces: little, and for a short time."""

from pathlib import Path

import pytest

from aggregator.transfer.assembly import IDLE_S, TIMES, Assembly, NoRoom
from wire.errors import LimitExceeded, Malformed
from wire.messages import Offer, Pieces
from wire.pieces import PIECE_BYTES, WINDOW, check_pieces, cut, place

LIMIT = 4 * 2**20
UPDATE = bytes(range(256)) * (2**12 * 3) + b"the rest"


def offer(device_id: str = "d0", payload: bytes = UPDATE, number: int = 1) -> Offer:
    return Offer(
        device_id,
        "r",
        number,
        cut(len(payload), lambda offset, size: payload[offset : offset + size]),
    )


def piece(pieces: Pieces, index: int, payload: bytes = UPDATE) -> bytes:
    offset, size = place(pieces, index)
    return payload[offset : offset + size]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def assembly(tmp_path: Path, clock: Clock) -> Assembly:
    return Assembly(tmp_path / "pieces", LIMIT, clock)


def fill(assembly: Assembly, offered: Offer, most: int = 1000) -> int:
    """Send what is wanted; returns how many pieces that were."""
    count = 0
    while count < most and (wanted := assembly.wanted(offered.device_id)):
        assert assembly.put(
            offered.device_id, offered.pieces.digest, wanted[0], piece(offered.pieces, wanted[0])
        )
        count += 1
    return count


def test_an_update_is_put_together_and_gone_once_it_is_safe(
    assembly: Assembly, tmp_path: Path
) -> None:
    assembly.begin(offer())
    assert len(assembly.wanted("d0")) == WINDOW
    fill(assembly, offer())
    assert assembly.take("d0") == UPDATE
    assembly.drop("d0")
    assert assembly.num_bytes == 0
    assert not [*(tmp_path / "pieces").iterdir()]


def test_after_a_restart_only_what_is_missing_is_wanted(
    assembly: Assembly, tmp_path: Path, clock: Clock
) -> None:
    whole = Assembly(tmp_path / "whole", LIMIT, clock)
    whole.begin(offer())
    assembly.begin(offer())
    count = fill(whole, offer())
    fill(assembly, offer(), 5)
    again = Assembly(tmp_path / "pieces", LIMIT, clock)
    again.begin(offer())
    assert fill(again, offer()) == count - 5
    assert again.take("d0") == UPDATE


def test_a_damaged_file_is_mended_after_a_restart(
    assembly: Assembly, tmp_path: Path, clock: Clock
) -> None:
    assembly.begin(offer())
    fill(assembly, offer())
    (path,) = (tmp_path / "pieces").iterdir()
    with path.open("r+b") as file:
        file.seek(PIECE_BYTES + 1)
        file.write(b"!")
    again = Assembly(tmp_path / "pieces", LIMIT, clock)
    again.begin(offer())
    assert again.wanted("d0") == (1,)


def test_a_piece_with_another_hash_is_told(assembly: Assembly) -> None:
    assembly.begin(offer())
    before = assembly.wanted("d0")
    assert not assembly.put("d0", offer().pieces.digest, 0, b"x" * PIECE_BYTES)
    assert not assembly.put("d0", offer().pieces.digest, 511, b"x")
    assert assembly.wanted("d0") == before


def test_a_digest_that_the_pieces_do_not_have_together_is_told(assembly: Assembly) -> None:
    true = offer()
    lie = Offer(
        "d0",
        "r",
        1,
        Pieces("0" * 64, true.pieces.num_bytes, true.pieces.piece_bytes, true.pieces.pieces),
    )
    assembly.begin(lie)
    fill(assembly, lie)
    assert assembly.take("d0") is None


def test_pieces_that_nobody_wants_take_no_room(assembly: Assembly, tmp_path: Path) -> None:
    for index in range(100):
        assert assembly.put("d0", "0" * 64, index, b"x" * PIECE_BYTES)
    assert not [*(tmp_path / "pieces").iterdir()]


def test_a_device_has_one_update_at_a_time(assembly: Assembly, tmp_path: Path) -> None:
    for number in range(1, 20):
        other = bytes([number]) + UPDATE[1:]
        assembly.begin(offer(payload=other, number=number))
        assembly.put("d0", offer(payload=other).pieces.digest, 0, other[:PIECE_BYTES])
    assert assembly.num_bytes == len(UPDATE)
    assert sum(path.stat().st_size for path in (tmp_path / "pieces").iterdir()) <= len(UPDATE)


def test_many_devices_share_a_bounded_room_which_the_silent_leave(
    assembly: Assembly, clock: Clock
) -> None:
    room = TIMES * LIMIT // len(UPDATE)
    for number in range(room):
        assembly.begin(offer(f"d{number}"))
    with pytest.raises(NoRoom):
        assembly.begin(offer("one-more"))
    clock.now_s += IDLE_S + 1
    assembly.begin(offer("one-more"))
    assert assembly.num_bytes == len(UPDATE)


@pytest.mark.parametrize(
    ("num_bytes", "count"), [(LIMIT + 1, 65), (2**31, 1), (65_536, 2), (65_537, 1)]
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_stored(
    num_bytes: int, count: int
) -> None:
    with pytest.raises((LimitExceeded, Malformed)):
        check_pieces(Pieces("0" * 64, num_bytes, 65_536, ("0" * 64,) * count), LIMIT)
