"""Lines of a log that nobody can forge."""

import io
import logging

from host.logs import FORMAT, OneLine


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
    text = written("ignored %s", "x\n2026-11-22 00:00:00 INFO shoal forged\r\x1b[2J\ud800\u2028\x85")
    assert text.count("\n") == 1
    assert text.endswith("\\n2026-11-22 00:00:00 INFO shoal forged\\r\\x1b[2J\\ud800\\u2028\\x85\n")


def test_what_can_be_printed_is_as_it_was() -> None:
    assert written("42 %% of é, 日本 and 🐟").endswith(" ERROR shoal.test 42 %% of é, 日本 and 🐟\n")


def test_lines_of_a_traceback_do_not_look_like_records() -> None:
    try:
        raise ValueError("one\n2026-11-22 00:00:00,000 INFO shoal forged\x1b")
    except ValueError:
        text = written("failed", exc_info=True)
    first, *rest = text.rstrip("\n").split("\n")
    assert first.endswith(" ERROR shoal.test failed")
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
