"""Compares the hand-written stubs of Android's classes with the API.

Each class, method (name, parameter types, return type, static or not) and constant must be in the
Python type stubs, which are generated from Android's own class files.
"""

import ast
import re
import subprocess
import zipfile
from pathlib import Path
from typing import NamedTuple

PRIMITIVES = {
    "int": "int",
    "long": "int",
    "short": "int",
    "byte": "int",
    "boolean": "bool",
    "float": "float",
    "double": "float",
    "char": "str",
}
"""Names of Java's primitive return types in the Python type stubs.

For parameters the stubs also list `java.jint` and so on.
"""

ALIASES = {"java.lang.String": "str", "java.lang.Class": "typing.Type"}
"""Java classes with a Python name in the type stubs."""


class Signature(NamedTuple):
    """Signature of a method in the type stubs.

    `further` is the type of variable arguments, or "" if there are none.
    """

    parameters: tuple[str, ...]
    further: str
    returns: str
    static: bool

    def is_of(self, parameters: list[str], returns: str | None, static: bool) -> bool:
        """Return True if a Java method has this signature; `returns` is None for a constructor."""
        java_types = [*parameters]
        if (
            bool(self.further) != bool(java_types and java_types[-1].endswith("..."))
            or self.static != static
        ):
            return False
        if self.further and not takes(java_types.pop().removesuffix("..."), self.further):
            return False
        fits = len(java_types) == len(self.parameters) and all(
            takes(java, python) for java, python in zip(java_types, self.parameters, strict=True)
        )
        return fits and (returns is None or gives(returns, self.returns))

    def __str__(self) -> str:
        further = [f"*{self.further}"] if self.further else []
        return (
            f"{'static ' if self.static else ''}({', '.join([*self.parameters, *further])}) -> "
            f"{self.returns}"
        )


Methods = dict[str, list[Signature]]


def takes(java: str, python: str) -> bool:
    """Return True if a parameter's Java type is the type `python` of the stubs."""
    choices = _choices(python)
    if java in PRIMITIVES:
        return f"java.j{java}" in choices
    return any(_is(java, choice) for choice in choices)


def gives(java: str, python: str) -> bool:
    """Return True if a method's Java return type is the type `python` of the stubs."""
    if java == "void":
        return python == "None"
    if java in PRIMITIVES:
        return python == PRIMITIVES[java]
    return any(_is(java, choice) for choice in _choices(python))


def _choices(python: str) -> list[str]:
    """Return the types of a union without None."""
    node, choices = ast.parse(python, mode="eval").body, list[str]()
    while isinstance(node, ast.BinOp):
        choices.append(ast.unparse(node.right))
        node = node.left
    return [name for name in [*choices, ast.unparse(node)] if name != "None"]


def _is(java: str, python: str) -> bool:
    """Return True if a Java class or array is this type of the stubs.

    The stubs omit the package of a class from the same file.
    """
    if java.endswith("[]"):
        array_type = re.fullmatch(r"java\.chaquopy\.JavaArray\[(.*)\]", python)
        element = java.removesuffix("[]")
        if element in PRIMITIVES:
            return python == f"java.chaquopy.JavaArrayJ{element.capitalize()}"
        return array_type is not None and _is(element, array_type[1])
    if re.fullmatch(r"[A-Z]", java):
        return python.startswith("_")  # a type variable
    name, plain = python.partition("[")[0], java.replace("$", ".")
    return name in (plain, ALIASES.get(java)) or plain.endswith(f".{name}")


def check(stubs: Path, api: Path, javap: str) -> tuple[int, list[str]]:
    """Look up the members of the `android.*` classes of the jar `stubs` in the type stubs `api`.

    Return the number of members, and a line for each class or member that is not there.
    """
    count, wrong = 0, []
    with zipfile.ZipFile(stubs) as archive:
        names = sorted(
            n.removesuffix(".class")
            for n in archive.namelist()
            if n.startswith("android/") and n.endswith(".class")
        )
    listing = subprocess.run(
        [javap, "-protected", "-cp", str(stubs), *names], capture_output=True, text=True, check=True
    ).stdout
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


def _member(line: str, cls: str, methods: Methods, fields: dict[str, str]) -> str | None:
    """Return the problem of a member, "" if there is none, or None if the line is not a member."""
    bounds = dict(re.findall(r"\b([A-Z]) extends ([\w.$]+)", line))
    # generic types do not exist at run time
    while line != (line := re.sub(r"<[^<>]*>", "", line)):
        pass
    line = re.sub(
        r"\b[A-Z]\b",
        lambda variable: bounds.get(variable[0], variable[0]),
        re.sub(r"(?<=\S) +", " ", line),
    )
    if match := re.match(
        r"\s+(?:public|protected) ((?:\w+ )*?)(?:([\w$.\[\]]+) )?([\w$.]+)\((.*)\)", line
    ):
        static, returns, name = "static " in match[1], match[2], match[3].rpartition(".")[2]
        parameters = [part.strip() for part in match[4].split(",") if part.strip()]
        if match[3].replace("$", ".") == cls:
            name, returns = "__init__", None
            if not parameters and name not in methods:
                return None
        signatures = methods.get(name, [])
        if not any(signature.is_of(parameters, returns, static) for signature in signatures):
            return (
                f"{cls}.{name}: {line.strip()} is not one of the API's "
                f"{'; '.join(map(str, signatures)) or 'methods'}"
            )
        return ""
    if match := re.match(r"\s+public (?:\w+ )*?([\w$.\[\]]+) (\w+);$", line):
        kind = fields.get(match[2])
        return (
            ""
            if kind is not None and gives(match[1], kind)
            else f"{cls}.{match[2]}: {match[1]}; the API has {kind or 'no such field'}"
        )
    return None


def _find(api: Path, cls: str) -> ast.ClassDef | None:
    parts = cls.split(".")
    for i in range(len(parts) - 1, 0, -1):
        path = api / f"{parts[0]}-stubs" / Path(*parts[1:i]) / "__init__.pyi"
        if path.exists():
            body: list[ast.stmt] = ast.parse(path.read_text()).body
            node: ast.ClassDef | None = None
            for name in parts[i:]:
                node = next(
                    (n for n in body if isinstance(n, ast.ClassDef) and n.name == name), None
                )
                if node is None:
                    return None
                body = node.body
            return node
    return None


def _members(api: Path, node: ast.ClassDef) -> tuple[Methods, dict[str, str]]:
    """Return methods by name and types of fields of a class, with those of its base classes."""
    methods: Methods = {}
    fields: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            static = any(
                isinstance(d, ast.Name) and d.id == "staticmethod" for d in item.decorator_list
            )
            parameters = [*item.args.posonlyargs, *item.args.args][not static :]
            further = item.args.vararg
            methods.setdefault(item.name, []).append(
                Signature(
                    tuple(_type(parameter.annotation) for parameter in parameters),
                    _type(further.annotation) if further else "",
                    _type(item.returns),
                    static,
                )
            )
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields[item.target.id] = re.sub(
                r"^typing\.ClassVar\[(.*)\]$", r"\1", _type(item.annotation)
            )
    for base in node.bases:
        parent = _find(api, ast.unparse(base).split("[")[0])
        if parent is not None:
            inherited, more = _members(api, parent)
            for name, signatures in inherited.items():
                methods.setdefault(name, []).extend(signatures)
            fields = more | fields
    return methods, fields


def _type(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""
