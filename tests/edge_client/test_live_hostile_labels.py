"""Hostile labels: on a topic, in the file of labels, on the page."""

import http.client
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.live.labelling import labels as labels_module
from edge_client.live.labelling.label_file import LabelFile
from edge_client.live.labelling.labels import MOST_S, Labels, read_statement
from edge_client.live.labelling.page import MOST_CONNECTIONS, LabelPage
from tests.support.waiting import wait_until
from wire.errors import DataError

NOW_S = 1_700_100_000.0
SECRET = "MIGHAgEAMBMGByqGSM49"


@pytest.fixture
def said(tmp_path: Path) -> Labels:
    return Labels(tmp_path / "labels", ("walk", "sit"), wall=lambda: NOW_S)


HUGE = b'{"label":"sit","from":1' + b"0" * 400 + b"}"


class TestLabels:
    @pytest.mark.parametrize(
        "payload",
        [
            HUGE,
            b'{"label":"sit","from":0,"to":1' + b"0" * 400 + b"}",
            b'{"label":"sit","from":1' + b"0" * 5000 + b"}",
            b'{"label":' + b"[" * 20_000,
            b'{"label":"sit","from":NaN}',
            b'{"label":"sit","from":-1e300,"to":1e300}',
            b'{"label":"sit","from":0,"to":1.7e9}',
            b'{"label":"sit","from":4e9}',
            b"x" * 10**6,
        ],
    )
    def test_a_statement_that_is_none(self, said: Labels, payload: bytes) -> None:
        with pytest.raises(DataError) as caught:
            read_statement(payload, NOW_S, said)
        assert len(str(caught.value)) < 1000
        assert said.timeline.intervals(-np.inf) == []

    def test_the_longest_interval(self, said: Labels) -> None:
        said.say("sit", NOW_S - MOST_S, NOW_S)
        assert said.timeline.at(NOW_S - MOST_S + 1) == "sit"

    def test_very_many_intervals_leave_the_newest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(labels_module, "MOST_INTERVALS", 100)
        monkeypatch.setattr(labels_module, "MOST_BYTES", 2000)
        held = Labels(tmp_path, ("walk", "sit"), wall=lambda: NOW_S)
        for i in range(1000):
            held.say(("walk", "sit")[i % 2], NOW_S - 1000 + i, NOW_S - 999 + i, durable=False)
            assert (tmp_path / "labels.jsonl").stat().st_size <= 17_000
        for labels in (held, Labels(tmp_path, ("walk", "sit"))):
            assert 100 <= len(labels.timeline.intervals(0.0)) <= 200
            assert [labels.timeline.at(NOW_S - s + 0.5) for s in (1000, 2, 1)] == [
                None,
                "walk",
                "sit",
            ]

    def test_the_watcher_of_a_file_outlives_any_line(
        self, tmp_path: Path, said: Labels, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("edge_client.live.labelling.label_file.LOOK_S", 0.01)
        say, over = Labels.say, False

        def failing(self: Labels, label: str | None, *rest: Any, **options: Any) -> None:
            if label == "walk":
                raise ZeroDivisionError
            say(self, label, *rest, **options)

        monkeypatch.setattr(Labels, "say", failing)
        path = tmp_path / "now"
        path.touch()
        thread = LabelFile(path, said, wall=lambda: NOW_S).start(lambda: over)
        for line in (
            HUGE,
            b'{"label":' + b"[" * 20_000,
            b"walk",
            b"\xff\x00",
            b"\n" * 60_000,
            b"sit",
        ):
            with path.open("ab") as file:
                file.write(line + b"\n")
            time.sleep(0.05)  # so that each line has a look of its own
        wait_until(lambda: said.timeline.at(NOW_S + 1) == "sit")
        assert thread.is_alive()
        over = True
        thread.join(5)

    def test_a_label_file_that_is_a_link_or_a_pipe_is_not_read(
        self, tmp_path: Path, said: Labels, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "key.pem").write_text(f"{SECRET}\n")
        watch = LabelFile(tmp_path / "now", said, wall=lambda: NOW_S)
        (tmp_path / "now").symlink_to(tmp_path / "key.pem")
        watch.look()
        (tmp_path / "now").unlink()
        os.mkfifo(tmp_path / "now")
        watch.look()
        (tmp_path / "now").unlink()
        (tmp_path / "now").write_text("sit\n")
        watch.look()
        assert (said.timeline.at(NOW_S + 1), SECRET in caplog.text) == ("sit", False)


class TestPage:
    def ask(self, page: LabelPage, method: str, path: str = "/", **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=5)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value.encode("latin-1"))
        connection.endheaders()
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    def test_requests_of_all_kinds_end_in_an_answer(
        self, said: Labels, capfd: pytest.CaptureFixture[str]
    ) -> None:
        page = LabelPage("127.0.0.1:0", said, wall=lambda: NOW_S)
        for length in ("\u00b2", "9" * 5000, "-1", "1_0", " "):
            assert self.ask(page, "POST", "/label", Content_Length=length) == 413
        assert self.ask(page, "GET", Host="[") == 403
        assert self.ask(page, "GET", "http://[", Host="127.0.0.1") == 404
        page.close()
        assert "Traceback" not in capfd.readouterr().err

    def test_what_nobody_has_foreseen_ends_one_connection(
        self,
        said: Labels,
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        page = LabelPage("127.0.0.1:0", said, wall=lambda: NOW_S)
        with monkeypatch.context() as broken:
            broken.setattr(said.timeline, "at", lambda _t: 1 / 0)
            with pytest.raises(http.client.RemoteDisconnected):
                self.ask(page, "GET")
        assert self.ask(page, "GET") == 200
        page.close()
        assert ("ZeroDivisionError" in caplog.text, "Traceback" in capfd.readouterr().err) == (
            True,
            False,
        )

    def test_a_label_of_all_times_that_is_stored_can_be_shown(self, tmp_path: Path) -> None:
        (tmp_path / "labels.jsonl").write_text('{"from":-1e300,"to":1e300,"label":"sit"}\n')
        page = LabelPage("127.0.0.1:0", Labels(tmp_path, ("sit",)), wall=lambda: NOW_S)
        assert self.ask(page, "GET") == 200
        page.close()

    def test_very_many_connections(self, said: Labels) -> None:
        page = LabelPage("127.0.0.1:0", said, wall=lambda: NOW_S)
        idle = [
            http.client.HTTPConnection("127.0.0.1", page.port, timeout=5)
            for _ in range(MOST_CONNECTIONS)
        ]
        for connection in idle:
            connection.connect()
        with pytest.raises(OSError):  # noqa: PT011  the connection is reset or closed, as the kernel likes
            self.ask(page, "GET")
        for connection in idle:
            connection.close()
        assert wait_until(lambda: self.ask(page, "GET")) == 200
        page.close()
