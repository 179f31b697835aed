import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from aggregator.leadership.identity import lock_service
from aggregator.operator.audit import AUDIT
from aggregator.operator.desk import ORDERS, Answer, Desk, submit
from wire.errors import ConfigError


class Count(msgspec.Struct, frozen=True, tag="count"):
    to: int


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    foreseen: bool


class Counter:
    def __init__(self) -> None:
        self.value, self.times = 0, 0

    def count(self, order: Count) -> str:
        self.value, self.times = order.to, self.times + 1
        return f"it is {order.to} now"

    def fail(self, order: Fail) -> str:
        raise ConfigError("it may not be") if order.foreseen else RuntimeError("a defect")


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def desk(tmp_path: Path, counter: Counter) -> Desk:
    return Desk(tmp_path, {Count: counter.count, Fail: counter.fail})


def _served(folder: Path, desk: Desk, order: msgspec.Struct) -> str:
    held = lock_service(folder)
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            desk.look()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return submit(folder, order, wait_s=10)
    finally:
        over.set()
        thread.join()
        os.close(held)


def test_a_running_service_answers(tmp_path: Path, desk: Desk, counter: Counter) -> None:
    assert _served(tmp_path, desk, Count(7)) == "it is 7 now"
    assert (counter.value, counter.times) == (7, 1)
    assert not list((tmp_path / ORDERS).iterdir())
    line = json.loads((tmp_path / AUDIT).read_text())
    assert line["outcome"] == "done"
    assert json.loads(line["what"]) == {"type": "count", "to": 7}
    assert line["by"]


@pytest.mark.parametrize(
    ("foreseen", "text"), [(True, "it may not be"), (False, "RuntimeError: a defect")]
)
def test_what_cannot_be_done_is_the_command_s_error(
    tmp_path: Path, desk: Desk, foreseen: bool, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        _served(tmp_path, desk, Fail(foreseen))
    assert json.loads((tmp_path / AUDIT).read_text())["outcome"] == "refused"


def test_an_order_waits_for_a_service_that_does_not_run(
    tmp_path: Path, desk: Desk, counter: Counter
) -> None:
    assert "when one starts" in submit(tmp_path, Count(3))
    assert "when one starts" in submit(tmp_path, Count(4))
    desk.look()
    assert (counter.value, counter.times) == (4, 2)


def test_a_killed_service_carries_out_an_order_again_whose_end_it_has_not_noted(
    tmp_path: Path, desk: Desk, counter: Counter
) -> None:
    submit(tmp_path, Count(5))
    (path,) = (tmp_path / ORDERS).glob("*.json")
    kept = path.read_bytes()
    desk.look()
    path.write_bytes(kept)
    Desk(tmp_path, {Count: counter.count}).look()
    assert (counter.value, counter.times) == (5, 2)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b'{"by":"x","order":{"type":"count"}}',
        b'{"by":"x","order":{"type":"other"}}',
        b"9" * 2**21,
    ],
)
def test_what_is_no_order_is_answered_and_taken_away(
    tmp_path: Path, desk: Desk, counter: Counter, payload: bytes
) -> None:
    (tmp_path / ORDERS).mkdir()
    (tmp_path / ORDERS / "1.json").write_bytes(payload)
    desk.look()
    assert counter.times == 0
    assert not (tmp_path / ORDERS / "1.json").exists()
    assert not msgspec.json.decode((tmp_path / ORDERS / "1.answer").read_bytes(), type=Answer).done


def test_an_answer_that_nobody_reads_goes_away(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / ORDERS).mkdir()
    answer = tmp_path / ORDERS / "1.answer"
    answer.write_bytes(b"{}")
    os.utime(answer, (0, 0))
    desk.look()
    assert not answer.exists()


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        submit(tmp_path / "none", Count(1))


def test_a_service_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    held = lock_service(tmp_path)
    try:
        with pytest.raises(ConfigError, match="has not answered"):
            submit(tmp_path, Count(1), wait_s=0.2)
    finally:
        os.close(held)
