"""Holds the hand-written stubs of Android's classes to the API: each class, method (name, number of parameters, static or not) and constant
must be in the type stubs that are generated from Android's own class files."""

import ast
import re
import subprocess
import zipfile
from pathlib import Path

Methods = dict[str, set[tuple[int, bool]]]


def check(stubs: Path, api: Path, javap: str) -> tuple[int, list[str]]:
    """How many members of the `android.*` classes in the jar `stubs` were looked up in `api`, and what is not there."""
    count, wrong = 0, []
    with zipfile.ZipFile(stubs) as archive:
        names = sorted(n.removesuffix(".class") for n in archive.namelist() if n.startswith("android/") and n.endswith(".class"))
    listing = subprocess.run([javap, "-protected", "-cp", str(stubs), *names], capture_output=True, text=True, check=True).stdout
    for name, body in zip(names, re.findall(r"\{\n(.*?)\n?\}\n", listing, re.DOTALL), strict=True):
        cls = name.replace("/", ".").replace("$", ".")
        node = _find(api, cls)
        if node is None:
            wrong.append(f"{cls}: there is no such class")
            continue
        methods, fields = _members(api, node)
        for line in body.splitlines():
            problem = _member(line, cls, methods, fields)
            count += problem is not None
            if problem:
                wrong.append(problem)
    return count, wrong


def _member(line: str, cls: str, methods: Methods, fields: set[str]) -> str | None:
    """What is wrong with a member, empty if nothing; None for a line that is no member of the API's."""
    if match := re.match(r"\s+(?:public|protected) (.*?)([\w$.]+)\((.*)\)", line):
        static, name = "static " in match[1], match[2].rpartition(".")[2]
        arguments = match[3].count(",") + 1 if match[3].strip() else 0
        if match[2].replace("$", ".") == cls:
            name = "__init__"
            if arguments == 0 and "__init__" not in methods:
                return None
        if "..." in match[3]:
            arguments -= 1  # the type stubs do not count a variable number of parameters
        if (arguments, static) not in methods.get(name, set()):
            return f"{cls}.{name}: {arguments} parameters{', static' if static else ''}; the API has {sorted(methods.get(name, set()))}"
        return ""
    if match := re.match(r"\s+public .*?(\w+);$", line):
        return "" if match[1] in fields else f"{cls}.{match[1]}: there is no such field"
    return None


def _find(api: Path, cls: str) -> ast.ClassDef | None:
    parts = cls.split(".")
    for i in range(len(parts) - 1, 0, -1):
        path = api / f"{parts[0]}-stubs" / Path(*parts[1:i]) / "__init__.pyi"
        if path.exists():
            body: list[ast.stmt] = ast.parse(path.read_text()).body
            node: ast.ClassDef | None = None
            for name in parts[i:]:
                node = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == name), None)
                if node is None:
                    return None
                body = node.body
            return node
    return None


def _members(api: Path, node: ast.ClassDef) -> tuple[Methods, set[str]]:
    """Methods by name, as (number of parameters, static), and fields; those of its bases too."""
    methods: Methods = {}
    fields: set[str] = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in item.decorator_list)
            count = len(item.args.posonlyargs) + len(item.args.args) - (not static)
            methods.setdefault(item.name, set()).add((count, static))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields.add(item.target.id)
    for base in node.bases:
        parent = _find(api, ast.unparse(base).split("[")[0])
        if parent is not None:
            inherited, more = _members(api, parent)
            for name, kinds in inherited.items():
                methods.setdefault(name, set()).update(kinds)
            fields |= more
    return methods, fields
