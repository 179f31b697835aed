"""The page with buttons: what it says and asks, and who may say something on it."""

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.core.ports import Current
from edge_client.core.questions import Question
from edge_client.core.stream import StreamSums
from edge_client.live.labelling.label_file import LabelFile
from edge_client.live.labelling.labels import Labels
from edge_client.live.labelling.page import LabelPage
from edge_client.live.labelling.questions import Questions
from edge_client.models.description import ModelInUse, describe
from edge_client.storage.state import DeviceState
from tests.support.browser import chromium, watched
from wire.errors import ConfigError

NOW_S = 1_800_000_000.0


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    return Labels(tmp_path, ("rest", "<b>walk</b>"), wall=lambda: NOW_S)


@pytest.fixture
def page(labels: Labels) -> Iterator[LabelPage]:
    page = LabelPage("127.0.0.1:0", labels, wall=lambda: NOW_S)
    yield page
    page.close()


def ask(
    page: LabelPage, path: str = "/", fields: dict[str, str] | None = None, **headers: str
) -> tuple[int, str]:
    """Status and text of an answer; redirects are followed."""
    data = urllib.parse.urlencode(fields).encode() if fields is not None else None
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{page.port}{path}", data, names)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def token(page: LabelPage) -> str:
    found = re.search(r'name="token" value="([^"]+)"', ask(page)[1])
    assert found is not None
    return found[1]


def test_a_button_labels_from_now_on_and_the_page_shows_it(page: LabelPage, labels: Labels) -> None:
    text = ask(page)[1]
    assert 'value="rest"' in text
    assert "&lt;b&gt;walk" in text
    assert "<b>walk" not in text
    status, text = ask(page, "/label", {"token": token(page), "label": "rest", "minutes": "0"})
    assert (status, "Now: <b>rest</b>" in text) == (200, True)
    assert (labels.timeline.at(NOW_S - 1), labels.timeline.at(NOW_S + 60)) == (None, "rest")


def test_the_last_minutes_can_be_labelled_and_unlabelled(page: LabelPage, labels: Labels) -> None:
    ask(page, "/label", {"token": token(page), "label": "rest", "minutes": "5"})
    assert [labels.timeline.at(NOW_S - s) for s in (301, 299, 1)] == [None, "rest", "rest"]
    assert labels.timeline.at(NOW_S + 1) is None
    ask(page, "/label", {"token": token(page), "label": "", "minutes": "2"})
    assert [labels.timeline.at(NOW_S - s) for s in (121, 119)] == ["rest", None]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
    ],
)
def test_other_web_pages_say_nothing(
    page: LabelPage, labels: Labels, headers: dict[str, str]
) -> None:
    status, _ = ask(page, "/label", {"token": token(page), "label": "rest"}, **headers)
    assert (status, labels.timeline.intervals(0.0)) == (403, [])


def test_a_name_that_leads_here_does_not_show_the_token(page: LabelPage) -> None:
    status, text = ask(page, Host="evil.example")
    assert (status, "token" in text) == (403, False)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"label": "rest"}, 403),
        ({"label": "rest", "token": "x"}, 403),
        ({"label": "fly", "token": "right"}, 400),
        ({"label": "rest", "minutes": "-1", "token": "right"}, 400),
        ({"label": "rest", "minutes": "nan", "token": "right"}, 400),
        ({"label": "rest", "minutes": "1e9", "token": "right"}, 400),
        ({"label": "x" * 5000}, 413),
    ],
)
def test_what_is_no_label_is_refused(
    page: LabelPage, labels: Labels, fields: dict[str, str], status: int
) -> None:
    fields = fields | ({"token": token(page)} if fields.get("token") == "right" else {})
    assert ask(page, "/label", fields)[0] == status
    assert labels.timeline.intervals(0.0) == []


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:80", "localhost", "127.0.0.1:99999"])
def test_an_address_that_it_does_not_take(labels: Labels, address: str) -> None:
    with pytest.raises(ConfigError):
        LabelPage(address, labels)


def test_a_file_says_what_is_happening_now(tmp_path: Path, labels: Labels) -> None:
    path = tmp_path / "label"
    path.write_text("rest\n")  # before the process
    watch = LabelFile(path, labels, wall=lambda: NOW_S)
    watch.look()
    assert labels.timeline.intervals(0.0) == []
    time.sleep(0.01)
    with path.open("a") as file:
        file.write('{"label": "rest", "from": 100, "to": 200}\nrest\n')
    watch.look()
    assert (labels.timeline.at(150), labels.timeline.at(NOW_S + 1)) == ("rest", "rest")
    path.write_text("none")
    watch.look()
    assert labels.timeline.at(NOW_S + 1) is None


@pytest.fixture
def asking(labels: Labels, tmp_path: Path) -> Iterator[LabelPage]:
    """The page of a board with a model, which has a question."""
    state = DeviceState(tmp_path / "state")
    classes = ("rest", "<b>walk</b>")
    state.put_current(
        Current("b" * 64, "a" * 64, "", "r", 1, NOW_S, name="har", classes=classes), b""
    )
    state.put_stream(StreamSums("b" * 64, 110.0, 10.0))
    state.put_questions((Question(NOW_S - 2000, NOW_S - 1280, 600, "<b>walk</b>"),))
    page = LabelPage(
        "127.0.0.1:0",
        labels,
        wall=lambda: NOW_S,
        questions=Questions(ModelInUse(state), tmp_path, labels, 3),
    )
    yield page
    page.close()


def test_a_question_says_its_reason_and_an_answer_labels_the_whole_stretch(
    asking: LabelPage, labels: Labels
) -> None:
    text = ask(asking)[1]
    assert "12 minutes that look alike, probably &lt;b&gt;walk&lt;/b&gt;." in text
    begin = repr(NOW_S - 2000)
    fields = {"token": token(asking), "begin": begin, "label": "rest"}
    status, text = ask(asking, "/answer", fields)
    assert (status, "What was it?" in text) == (200, False)
    assert [labels.timeline.at(NOW_S - s) for s in (2001, 1999, 1281, 1279)] == [
        None,
        "rest",
        "rest",
        None,
    ]
    status, text = ask(asking, "/answer", fields)
    assert (status, text) == (400, "This question is no longer open: load the page again")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"begin": "0"}, 400),
        ({"begin": "x"}, 400),
        ({"begin": "nan"}, 400),
        ({}, 400),
        ({"begin": repr(NOW_S - 2000), "label": "swim"}, 400),
        ({"begin": repr(NOW_S - 2000), "token": "t"}, 403),
    ],
)
def test_what_is_no_answer_is_refused(
    asking: LabelPage, labels: Labels, fields: dict[str, str], status: int
) -> None:
    answer = ask(asking, "/answer", {"token": token(asking), "label": "rest"} | fields)
    assert answer[0] == status
    assert not labels.has_any(0, NOW_S)
    assert "What was it?" in ask(asking)[1]


def test_a_page_without_questions_takes_no_answer(page: LabelPage) -> None:
    assert "What was it?" not in ask(page)[1]
    assert ask(page, "/answer", {"token": token(page), "label": "rest", "begin": "0"})[0] == 400


def test_the_page_says_what_status_says(asking: LabelPage, tmp_path: Path) -> None:
    text = ask(asking)[1]
    lines = describe(DeviceState(tmp_path / "state", read_only=True))
    assert len(lines) > 2
    assert all(f"<li>{line}</li>" in text for line in lines)
    assert "stream: activities last about 9 windows" in text


def test_in_a_browser_a_question_is_answered_by_one_button(
    asking: LabelPage, labels: Labels
) -> None:
    with chromium() as browser, watched(browser, phone=True) as seen:
        seen.page.goto(f"http://127.0.0.1:{asking.port}/")
        form = seen.page.locator("form[action='/answer']")
        assert form.get_by_role("button").all_text_contents() == [
            "rest",
            "<b>walk</b>",
            "none of these",
        ]
        assert not seen.inaccessible()
        form.get_by_role("button", name="none of these").click()
        seen.page.get_by_text("What is happening?").wait_for()
        assert seen.page.locator("form[action='/answer']").count() == 0
        assert not labels.has_any(0, NOW_S)
        assert not seen.complaints
