"""Count what the code style forbids, and fail if a count is above its ceiling in `ceilings.toml`.

    python .ci/style.py            count everything
    python .ci/style.py RULE ...   also list every place that breaks these rules

A ceiling may only fall: after places are mended, lower it to the new count.
"""

import ast
import collections
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SKIPPED = {"tests", "benchmarks", ".venv", "build", "dist", "examples", "docs", ".tools", "runs"}
CLAUSE = re.compile(
    r"^(Whether|What|How|Of|By|Those|The one|The same|As|So many|In which|Under which|For which|"
    r"Who|Whose|Which|Where|When|If|Since|Until|Such|"
    r"(Return|Yield) (whether|what|how|who|whose|which))\b"
)
KDOC = re.compile(r"/\*\*[\s*]*(.*)")
PARTICIPLES = {
    *("told", "made", "found", "held", "said", "known", "own", "asked", "given", "kept", "says"),
    *("has", "left", "meant", "taken", "done", "begun"),
}
RUFF = {"D205": "no blank line after the summary", "D401": "the summary is not imperative"}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of functions and classes, and of notes on fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, ast.get_docstring(node) or ""
        body = getattr(node, "body", None)
        for field, note in itertools.pairwise(body) if isinstance(body, list) else ():
            match field, note:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    yield note.lineno, text.strip()


def places(root: Path) -> dict[str, list[str]]:
    """Return the places that break each rule, as lines of text."""
    broken: dict[str, list[str]] = {
        "clause": [],
        "participle": [],
        "class-twice": [],
        "bare-cause": [],
    }
    classes = collections.defaultdict(list)
    files = sorted(f for f in root.rglob("*.py") if not SKIPPED & {*f.relative_to(root).parts})
    for file in files:
        tree, path = ast.parse(file.read_text()), file.relative_to(root)
        for line, text in docstrings(tree):
            if CLAUSE.match(text):
                broken["clause"].append(f"{path}:{line}: {text.splitlines()[0]}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{path}:{node.lineno}")
            match node:
                case ast.Name(name, ast.Store()) if name in PARTICIPLES:
                    broken["participle"].append(f"{path}:{node.lineno}: {name}")
                case ast.arg(name) if name in PARTICIPLES:
                    broken["participle"].append(f"{path}:{node.lineno}: {name}")
                case ast.Raise(exc=ast.Call(args=[*_, ast.JoinedStr(values=[*_, last])])):
                    if isinstance(last, ast.FormattedValue) and "strerror" in ast.dump(last):
                        broken["bare-cause"].append(f"{path}:{node.lineno}: no remedy")
    for file in sorted(root.glob("android_bridge/*/src/**/*.kt")):
        for opened in KDOC.finditer(text := file.read_text()):
            if CLAUSE.match(opened[1]):
                line = text.count("\n", 0, opened.start()) + 1
                broken["clause"].append(f"{file.relative_to(root)}:{line}: {opened[1]}")
    broken["class-twice"] = [f"{n}: {', '.join(at)}" for n, at in classes.items() if len(at) > 1]
    ruff = ["ruff", "check", "-q", "--isolated", f"--select={','.join(RUFF)}"]
    command = [sys.executable, "-m", *ruff, "--output-format=json", *map(str, files)]
    output = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    for code in RUFF:
        broken[code] = [
            f"{Path(each['filename']).relative_to(root)}:{each['location']['row']}: {RUFF[code]}"
            for each in output
            if each["code"] == code
        ]
    return broken


def main(listed: list[str]) -> int:
    """Print how the counts compare with their ceilings; return 1 if one is above."""
    ceilings: dict[str, int] = tomllib.loads((ROOT / ".ci" / "ceilings.toml").read_text())
    status = 0
    for rule, at in places(ROOT).items():
        for place in at if rule in listed else ():
            print(place)
        if len(at) > ceilings[rule]:
            status = 1
            print(f"{rule}: {len(at)} places, at most {ceilings[rule]} allowed by ceilings.toml;")
            print(f"    `python .ci/style.py {rule}` lists them")
        elif len(at) < ceilings[rule]:
            print(f"{rule}: {len(at)} places; lower the ceiling in .ci/ceilings.toml to {len(at)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
