"""Draws the pictures of docs/concepts.md as SVG: `python docs/site/draw.py`. They are readable on
light and dark ground."""

from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
TEAL, RED, INK, QUIET, PAPER = "#1b7f79", "#d1495b", "#17252c", "#50626c", "#ffffff"


def svg(width: int, height: int, title: str, *parts: str) -> str:
    """A picture on a ground of its own."""
    arrow = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker></defs>'
    )
    ground = f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>'
    style = 'font-family="system-ui, DejaVu Sans, sans-serif" font-size="14"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f"{style}><title>{title}</title>"
    )
    return "\n".join([head, arrow, ground, *parts, "</svg>"]) + "\n"


def text(
    x: float,
    y: float,
    words: str,
    colour: str = INK,
    anchor: str = "middle",
    size: int = 14,
    bold: bool = False,
) -> str:
    """Words."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}"{weight}>{words}</text>'
    )


def box(
    x: float, y: float, width: float, height: float, words: str, colour: str = TEAL, under: str = ""
) -> str:
    """A box with words, and smaller ones under them."""
    middle = x + width / 2
    shape = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" '
        f'fill-opacity=".12" stroke="{colour}"/>'
    )
    first = text(middle, y + height / 2 + (5 if not under else -3), words, bold=True)
    return (
        shape + first + (text(middle, y + height / 2 + 15, under, QUIET, size=12) if under else "")
    )


def arrow(x1: float, y1: float, x2: float, y2: float, words: str = "", above: int = 7) -> str:
    """An arrow, with words at its middle."""
    line = (
        f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{QUIET}" stroke-width="1.6" fill="none" '
        'marker-end="url(#a)"/>'
    )
    return line + (
        text((x1 + x2) / 2, (y1 + y2) / 2 - above, words, QUIET, size=12) if words else ""
    )


def dot(x: float, y: float, colour: str) -> str:
    """A device."""
    return f'<circle cx="{x}" cy="{y}" r="11" fill="{colour}"/>'


def groups() -> str:
    """One model for all, and one for each group."""
    teal, red = [(45, 90), (95, 70), (70, 140)], [(150, 70), (200, 90), (175, 140)]
    parts = [dot(x, y, TEAL) for x, y in teal] + [dot(x, y, RED) for x, y in red]
    parts += [arrow(x + (122 - x) * 0.15, y + (222 - y) * 0.15, 122, 222) for x, y in teal + red]
    parts += [box(67, 226, 110, 40, "one model"), text(122, 34, "FedAvg", bold=True)]
    for middle, colour, number in ((335, TEAL, 0), (490, RED, 1)):
        places = [(middle - 50, 100), (middle, 80), (middle + 50, 100)]
        parts += [dot(x, y, colour) for x, y in places]
        parts += [
            arrow(x + (middle - x) * 0.15, y + (222 - y) * 0.15, middle, 222) for x, y in places
        ]
        parts.append(box(middle - 55, 226, 110, 40, f"group {number}", colour))
    parts.append(text(412, 34, "with groups", bold=True))
    parts += [
        text(
            300,
            300,
            "A colour is a distribution of data, which nobody told the aggregator.",
            QUIET,
            size=12,
        )
    ]
    return svg(
        600,
        320,
        "With FedAvg six devices of two kinds share one model; with groups each kind has a model "
        "of its own",
        *parts,
    )


def one_round() -> str:
    """Draw the messages of a round."""
    steps = [
        ("check-in: id, number of windows", True),
        ("plan: a short list of verbs, signed", False),
        ("bundle and model, fetched by hash", False),
        ("update: what training changed", True),
        ("acknowledge, once it is on disk", False),
    ]
    parts = [
        box(30, 20, 130, 44, "device", under="keeps its windows"),
        box(440, 20, 130, 44, "aggregator", RED, "sees no window"),
    ]
    parts += [f'<path d="M{x} 64V282" stroke="{QUIET}" stroke-dasharray="3 4"/>' for x in (95, 505)]
    for i, (words, up) in enumerate(steps):
        y = 100 + 40 * i
        parts.append(arrow(97, y, 503, y, words) if up else arrow(503, y, 97, y, words))
    parts += [
        text(505, 304, "tests who belongs together,", QUIET, size=12),
        text(505, 322, "averages inside each group", QUIET, size=12),
    ]
    parts.append(text(86, 204, "trains", QUIET, "end", 12))
    return svg(
        620,
        345,
        "A round: check-in, plan, bundle and model, update, acknowledgement; then groups are "
        "found and averaged",
        *parts,
    )


def release() -> str:
    """Draw the way of a trained model into use."""
    parts = [
        box(20, 40, 120, 50, "campaign", under="trains in rounds"),
        arrow(140, 65, 190, 65),
        box(192, 40, 120, 50, "release", under="a model, a number"),
        arrow(312, 65, 362, 65),
        box(364, 40, 100, 50, "first step", under="a few report"),
        arrow(464, 65, 514, 65),
        box(516, 40, 90, 50, "all"),
        arrow(414, 92, 414, 150),
        box(324, 152, 180, 46, "worse: goes back", RED, "the one before, by itself"),
    ]
    return svg(
        626,
        220,
        "A campaign trains, a release is given to a few devices, then to all, or goes back by "
        "itself",
        *parts,
    )


def main() -> None:
    """Write all pictures."""
    for name, made in (
        ("concept-groups", groups()),
        ("concept-round", one_round()),
        ("concept-release", release()),
    ):
        (IMAGES / f"{name}.svg").write_text(made)


if __name__ == "__main__":
    main()
