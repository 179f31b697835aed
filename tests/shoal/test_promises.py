"""docs/promises.md names tests that are there; no other page names one inside a sentence."""

import ast
import re
from functools import cache

import pytest

from tests.support.pages import ROOT, page

FOR_AUTHORS = ("promises", "extend", "house", "release", "android-evidence")
"""Pages for people who change the code, who are told where its tests are."""
PROMISES = re.findall(r"^\| (.+) \| (`tests/.+`) \|$", page("promises"), re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    """Return the tests and classes of tests in a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_named_test_is_there() -> None:
    assert PROMISES
    for promise, tests in PROMISES:
        for test in re.findall("`([^`]+)`", tests):
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), f"{promise}: no file {path}"
            assert not name or name in names_in(path), f"{promise}: no test {test}"


@pytest.mark.parametrize(
    "name", [path.stem for path in (ROOT / "docs").glob("*.md") if path.stem not in FOR_AUTHORS]
)
def test_no_page_names_a_test_inside_a_sentence(name: str) -> None:
    assert "tests/" not in page(name)
