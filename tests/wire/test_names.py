"""The grammar of tensor names: the vectors that every implementation is held to, and that nobody
else spells a name."""

import ast
import inspect
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.wire.names_vectors import FILE, text
from wire.arrays import names

ROOT = Path(__file__).parents[2]
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())
KINDS = (
    "shared|statistic|private|slot|memory|received|delta|response|batch|hyper|uniform|normal|next|"
    "metric|output|column|personal"
)
SPELLED = re.compile(rf"^({KINDS})/|running_(mean|var)")
"""Texts that only `wire.arrays.names` writes: a name or its beginning, and the names of running
statistics."""
CUTS = ("split", "rsplit", "partition", "rpartition")
OTHERS = (
    "aggregator/fleet/reconcile.py",
    "aggregator/fleet/rollouts.py",
    "wire/topics.py",
    "wire/links/in_process.py",
    "simulation/engine/checkpoint.py",
    "edge_client/commands/live.py",
    "edge_client/data/recordings/folders.py",
    "simulation/datasets/doubts.py",
    "simulation/datasets/owners.py",
    "wire/asyncapi.py",
    "edge_client/storage/files.py",
    "edge_client/storage/state.py",
)
"""These cut at slashes too: marks, topics, names in a checkpoint, an address, names of files and
recordings."""


@pytest.mark.parametrize("vector", VECTORS["parsed"], ids=lambda v: v["key"])
def test_a_name_is_parsed(vector: dict[str, Any]) -> None:
    key = vector["key"]
    assert (names.role_of(key), names.name_of(key)) == (vector["role"], vector["name"])
    assert names.key_of(vector["role"], vector["name"]) == key
    assert key.removeprefix(names.following.text) == vector["without_next"]
    assert names.following(key).removeprefix(names.following.text) == key
    assert (names.role_of(key) in names.EXCHANGED) is vector["is_exchanged"]
    assert names.is_variance(key) is vector["is_variance"]


@pytest.mark.parametrize("vector", VECTORS["built"], ids=lambda v: v["key"])
def test_a_name_is_built(vector: dict[str, Any]) -> None:
    assert getattr(names, vector["function"])(*vector["arguments"]) == vector["key"]


def test_the_vectors_are_written_and_have_every_kind() -> None:
    assert FILE.read_text() == text()
    assert {v["role"] for v in VECTORS["parsed"]} == {*KINDS.split("|"), "statistics"}
    built = {
        name
        for name, value in vars(names).items()
        if isinstance(value, names.Prefix)
        or (inspect.isfunction(value) and inspect.signature(value).return_annotation is str)
    }
    assert built - {"key_of", "role_of", "name_of"} == {v["function"] for v in VECTORS["built"]}


def test_start_copies_and_rows() -> None:
    assert names.is_start("received/start.w")
    assert not names.is_start("received/started.w")
    assert [
        k
        for k in ("batch/x", "batch/weight", "batch/uniform/u", "batch/normal/z", "hyper/lr")
        if names.has_rows(k)
    ] == [
        "batch/x",
        "batch/weight",
        "batch/uniform/u",
    ]


def test_entries_of_a_role_keep_their_order() -> None:
    tensors = {"statistic/b": 1, "shared/z": 2, "share/x": 3, "shared/a": 4, "shared": 5}
    assert list(names.of_role(tensors, names.SHARED, names.STATISTIC)) == [
        "statistic/b",
        "shared/z",
        "shared/a",
    ]
    assert list(names.part(tensors, names.SHARED).items()) == [("z", 2), ("a", 4)]


def test_a_name_without_a_role_is_an_error() -> None:
    with pytest.raises(ValueError, match="'weight': expected ROLE/NAME"):
        names.name_of("weight")


def spelled(source: str) -> list[tuple[int, str]]:
    """Line and text of each string that spells a tensor's name (of an f-string each part that is
    text; docstrings are none), and of each cut at a slash."""
    nodes = list(ast.walk(ast.parse(source)))
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]
    found = [(node.lineno, str(node.value)) for node in texts if SPELLED.search(str(node.value))]
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CUTS
    ]
    return found + [
        (call.lineno, ast.unparse(call))
        for call in calls
        if call.args and ast.unparse(call.args[0]) == "'/'"
    ]


def product_files() -> list[str]:
    """The tracked Python files that are no tests."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [
        name
        for name in tracked
        if not name.startswith(("tests/", "android_bridge/")) and name != "wire/arrays/names.py"
    ]


def test_no_other_module_spells_a_name() -> None:
    found = [
        (name, line, text)
        for name in product_files()
        for line, text in spelled((ROOT / name).read_text())
        if name not in OTHERS or SPELLED.search(text)
    ]
    assert found == []
