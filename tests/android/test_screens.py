"""The sample app's screen: its words in both languages, and its layout at any state, width of
letters and colour scheme."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.android.screens import HEIGHT_DP, RESOURCES, STATES, WIDTH_DP, page_of, strings
from tests.support.browser import chromium, watched

pytestmark = pytest.mark.full

LANGUAGES = ("", "de")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def test_both_languages_say_the_same_things() -> None:
    english, german = strings(), strings("de")
    assert english.keys() == german.keys()
    for name, text in english.items():
        assert sorted(re.findall(r"%\d\$[sd]", text)) == sorted(
            re.findall(r"%\d\$[sd]", german[name])
        ), name


def test_every_state_of_a_fleet_is_drawn() -> None:
    code = (RESOURCES.parent / "kotlin/io/shoal/sample/MainActivity.kt").read_text()
    used = set(re.findall(r"R\.string\.(state_\w+)", code))
    drawn = {state.texts["state"][0] for state in STATES.values() if "state" in state.texts}
    assert used - {"state_consent"} == drawn, "without consent the state is not on the screen"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("dark", [False, True])
def test_no_state_cuts_a_word_off_or_has_a_button_too_small(
    browser: Browser, language: str, scale: float, dark: bool
) -> None:
    with watched(browser, dark, phone=True) as seen:
        seen.page.set_viewport_size({"width": WIDTH_DP, "height": HEIGHT_DP})
        for name, state in STATES.items():
            seen.page.set_content(page_of(state, strings(language), language, scale))
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= WIDTH_DP, name
            heights = seen.page.eval_on_selector_all(
                "button", "all => all.map(one => one.getBoundingClientRect().height)"
            )
            assert heights, name
            assert min(heights) >= 48, name
            if name in ("before", "training", "blocked"):
                assert seen.inaccessible() == [], name
