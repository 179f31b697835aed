"""Draws the sample app's screen in its states: the layout and the words that the app has, laid out
by a browser in place of Android.

``python -m tests.android.screens`` writes the pictures that the pages about Android show.
Colours and shapes are like those of Android's own theme; sizes in dp are the layout's.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.support.browser import chromium, watched

ROOT = Path(__file__).parents[2]
RESOURCES = ROOT / "android_bridge" / "sample" / "src" / "main" / "res"
PICTURES = ROOT / "docs" / "images"
ANDROID = "{http://schemas.android.com/apk/res/android}"
WIDTH_DP, HEIGHT_DP = 360, 740
SIZES = {"textAppearanceLarge": 22, "textAppearanceMedium": 18}
STYLE = """
  :root { --paper: #fafafa; --ink: #1c1b1f; --key: #d6d7d7; --fill: #00639a; --bar: #ececec; }
  @media (prefers-color-scheme: dark) { :root {
    --paper: #121212; --ink: #e6e1e5; --key: #3a3a3c; --fill: #7cc0f5; --bar: #1f1f1f; } }
  body { margin: 0; padding-bottom: 16px; background: var(--paper); color: var(--ink);
    font-family: Roboto, sans-serif; line-height: 1.3; }
  h1 { margin: 0 0 16px; padding: 16px; font-size: 1.25rem; font-weight: 500;
    background: var(--bar); }
  main > :not(h1) { margin-inline: 16px; }
  h2, p { margin-block: 0; font-weight: 400; overflow-wrap: anywhere; }
  button { display: block; width: calc(100% - 32px); min-height: 48px; margin-block: 4px;
    padding: 6px 8px; border: 0; border-radius: 4px; background: var(--key); color: inherit;
    font: 500 0.875rem Roboto, sans-serif; text-transform: uppercase; overflow-wrap: break-word; }
  progress { width: calc(100% - 32px); accent-color: var(--fill); }
"""


@dataclass(frozen=True)
class State:
    """State of the app's layout: hidden views, texts (a string's name and its values), and the
    progress of the bar."""

    takes_part: bool
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    percent: int = 0


def of_state(name: str, *values: str, **more: tuple[str, ...]) -> State:
    """A screen of somebody who takes part, in a state of the fleet."""
    return State(
        True, {"state": (name, *values)} | more, int(values[0]) if name == "state_training" else 0
    )


WAITS = ("network", "storage", "heat", "windows", "unlock", "enrolment", "approval", "job")
STATES = {
    "before": State(False),
    "idle": of_state("state_idle", result=("round_result", "93", "41")),
    **{f"waiting-{why}": of_state(f"state_{why}") for why in WAITS},
    "training": of_state(
        "state_training",
        "40",
        recording=("recording", "@walking"),
        watch=("live_stop",),
        live=("live_answer", "@walking", "96"),
    ),
    "uploading": of_state("state_uploading"),
    "blocked": of_state(
        "state_blocked", "https://shoal.example:8443 refuses: used: another key has used this token"
    ),
}


def strings(language: str = "") -> dict[str, str]:
    """The app's words by name, in a language of its resources; empty: English."""
    file = RESOURCES / (f"values-{language}" if language else "values") / "strings.xml"
    return {
        str(entry.get("name")): (entry.text or "").replace("\\'", "'")
        for entry in ElementTree.parse(file).getroot()
    }


def said(words: dict[str, str], name: str, values: tuple[str, ...] = ()) -> str:
    """A string with its values, of which one that begins with @ is a string itself."""
    given = [words[value[1:]] if value.startswith("@") else value for value in values]
    return re.sub(r"%(\d)\$[sd]", lambda found: given[int(found[1]) - 1], words[name]).replace(
        "%%", "%"
    )


def page_of(state: State, words: dict[str, str], language: str, scale: float = 1.0) -> str:
    """The screen as a page; `scale` is that of the user's letters."""
    layout = ElementTree.parse(RESOURCES / "layout" / "main.xml").getroot()
    hidden = {"give"} if state.takes_part else {"withdraw", "member"}
    body = "".join(_drawn(layout[0], state, words, hidden))
    head = (
        f"<title>{words['app_name']}</title><style>html {{ font-size: {16 * scale}px "
        f"}}{STYLE}</style>"
    )
    main = f"<main><h1>{words['app_name']}</h1>{body}</main>"
    return (
        "<!doctype html><html "
        f'lang="{language or "en"}"><head>{head}</head><body>{main}</body></html>'
    )


def _drawn(
    view: ElementTree.Element, state: State, words: dict[str, str], hidden: set[str]
) -> Iterator[str]:
    name = view.get(f"{ANDROID}id", "").rpartition("/")[2]
    if name in hidden:
        return
    if view.tag == "LinearLayout":
        for child in view:
            yield from _drawn(child, state, words, hidden)
        return
    own = view.get(f"{ANDROID}text", "").rpartition("/")[2]
    string, *values = state.texts.get(name, (own,))
    text = html.escape(said(words, string, tuple(values))) if string else ""
    if view.tag == "Button":
        yield f'<button id="{name}">{text}</button>'
    elif view.tag == "ProgressBar":
        label = words[view.get(f"{ANDROID}contentDescription", "").rpartition("/")[2]]
        yield f'<progress max="100" value="{state.percent}" aria-label="{label}"></progress>'
    elif view.tag == "TextView":
        size = SIZES[view.get(f"{ANDROID}textAppearance", "").rpartition("/")[2]] / 16
        above = view.get(f"{ANDROID}paddingTop", "0dp").removesuffix("dp")
        tag = "h2" if view.get(f"{ANDROID}accessibilityHeading") else "p"
        live = ' aria-live="polite"' if view.get(f"{ANDROID}accessibilityLiveRegion") else ""
        yield f'<{tag}{live} style="font-size: {size}rem; padding-top: {above}px">{text}</{tag}>'
    else:
        raise ValueError(f"the layout has a {view.tag}, which nobody draws")


def main() -> None:
    """Write the pictures."""
    with chromium() as browser:
        for name, language, dark in (
            ("before", "", False),
            ("training", "", False),
            ("blocked", "de", True),
        ):
            with watched(browser, dark, phone=True) as seen:
                seen.page.set_viewport_size({"width": WIDTH_DP, "height": HEIGHT_DP})
                seen.page.set_content(page_of(STATES[name], strings(language), language))
                seen.page.screenshot(path=PICTURES / f"sample-{name}.png", full_page=True)


if __name__ == "__main__":
    main()
