"""The page with buttons: what it says, and who may say something on it."""

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.live.labelling.label_file import LabelFile
from edge_client.live.labelling.labels import Labels
from edge_client.live.labelling.page import LabelPage
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
