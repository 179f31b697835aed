"""Lines of a log that nobody can forge."""

import io
import json
import logging
from datetime import datetime

from host.logs import FORMAT, JsonLine, OneLine


def written(*arguments: object, exc_info: bool = False) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine(FORMAT))
    logger = logging.Logger("shoal.test")
    logger.addHandler(handler)
    logger.error(*arguments, exc_info=exc_info)
    text = stream.getvalue()
    text.encode()  # it can be written
    return text


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    text = written(
        "ignored %s", "x\n2026-11-22 00:00:00 INFO shoal forged\r\x1b[2J\ud800\u2028\x85"
    )
    assert text.count("\n") == 1
    assert text.endswith("\\n2026-11-22 00:00:00 INFO shoal forged\\r\\x1b[2J\\ud800\\u2028\\x85\n")


def as_json(*arguments: object, exc_info: bool = False) -> dict[str, object]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLine({"fleet": "f"}))
    logger = logging.Logger("shoal.test")
    logger.addHandler(handler)
    logger.error(*arguments, exc_info=exc_info)
    (line,) = stream.getvalue().splitlines()
    line.encode()
    found: dict[str, object] = json.loads(line)
    return found


def test_json_has_a_field_for_each_argument_that_the_text_names() -> None:
    line = as_json(
        "declined device=%s round=%03d for %s: %.1f %% reason=%s", "d1", 7, "x", 2.5, None
    )
    time = line.pop("time")
    assert datetime.fromisoformat(str(time)).tzinfo is not None
    assert line == {
        **{
            "fleet": "f",
            "level": "ERROR",
            "logger": "shoal.test",
            "device": "d1",
            "round": 7,
            "reason": "None",
        },
        "message": "declined device=d1 round=007 for x: 2.5 % reason=None",
    }


def test_what_an_argument_says_makes_no_field_and_no_line_of_json() -> None:
    line = as_json(
        "refused device=%s %s", "a", 'round=9 fleet=g level=INFO\n{"level": "INFO"}\ud800'
    )
    assert (line["fleet"], line["level"], "round" in line) == ("f", "ERROR", False)
    assert as_json("level=%s fleet=%s", "INFO", "g")["level"] == "ERROR"
    assert as_json("without arguments device=%s")["message"] == "without arguments device=%s"
    assert as_json("%(a)s", {"a": 1})["message"] == "1"


def test_json_holds_a_traceback() -> None:
    try:
        raise ValueError("one")
    except ValueError:
        assert str(as_json("failed", exc_info=True)["traceback"]).endswith("ValueError: one")


def test_what_can_be_printed_is_as_it_was() -> None:
    assert written("42 %% of é, 日本 and 🐟").endswith(
        " ERROR shoal.test 42 %% of é, 日本 and 🐟\n"
    )


def test_lines_of_a_traceback_do_not_look_like_records() -> None:
    try:
        raise ValueError("one\n2026-11-22 00:00:00,000 INFO shoal forged\x1b")
    except ValueError:
        text = written("failed", exc_info=True)
    first, *rest = text.rstrip("\n").split("\n")
    assert first.endswith(" ERROR shoal.test failed")
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
