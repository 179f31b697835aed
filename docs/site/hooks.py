"""Hooks of mkdocs: the pages that live beside the code become pages of the site, links are turned
to where their target is on it, and the pages of commands, HTTP and MQTT are made from what the code
says of itself."""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import generated  # noqa: E402

MOVED = {
    "wire/SPEC.md": "wire.md",
    "android_bridge/README.md": "android-app.md",
    "benchmarks/RESULTS.md": "results.md",
    "benchmarks/REPRODUCTION.md": "reproduction.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "README.md": "index.md",
}
"""Page on the site of each path in the repository; `index.md` has the text of the README."""
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]*)?\)")
BLOCK = re.compile(r"<pre><span></span><code>[^<]*</code></pre>")
"""A block of commands on a built page: one without a language, in which nothing is highlighted."""
OPTION = re.compile(r"(?<=\s)(--?[\w-]+)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from beside the code, and those that are made."""
    for source, page in MOVED.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, make in generated.PAGES.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository to pages of the site. A file that is no page is added
    to the site, as it is."""
    where = next(
        (
            source
            for source, name in MOVED.items()
            if name == page.file.src_uri and name != "index.md"
        ),
        f"docs/{page.file.src_uri}",
    )

    def turn(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(where), target))
        if place in MOVED:
            return f"{text}({MOVED[place]}{anchor})"
        if place.startswith("docs/"):
            return f"{text}({place.removeprefix('docs/')}{anchor})"
        if not (ROOT / place).is_file():
            return f"{text.lstrip('!')[1:-1]} (`{place}`)" if (ROOT / place).is_dir() else found[0]
        is_shown_as_it_is = "." in posixpath.basename(place) and not place.endswith(".md")
        shown = f"files/{place}" + ("" if is_shown_as_it_is else ".txt")
        if files.get_file_from_path(shown) is None:
            files.append(File.generated(config, shown, content=(ROOT / place).read_bytes()))
        return f"{text}({shown}{anchor})"

    return "".join(
        part if part.startswith("```") else LINK.sub(turn, part) for part in FENCED.split(markdown)
    )


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Mark the options in blocks of commands: a narrow page breaks no line within `--out`."""
    return BLOCK.sub(lambda block: OPTION.sub(r'<span class="word">\1</span>', block[0]), html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the search for those who do not see it; the theme leaves that out."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
