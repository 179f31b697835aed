"""User code: classes in a file, in a module or passed in Python, and the errors that they raise.

``FILE.py:CLASS`` runs the file, ``PACKAGE.MODULE:CLASS`` imports the module. Each is loaded once
per state of its source, and that state is part of the `Choice`. So a campaign whose file was edited
meanwhile is refused and never mixes two versions. Two files with classes of the same name are never
confused.
"""

import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from sysconfig import get_path
from types import FrameType, ModuleType
from typing import Any

from algorithms.spec import PYTHON
from wire.errors import ConfigError, ShoalError

MODULES = "shoal_outside_"
"""Prefix of the names of modules run from files, by which pickles find their classes."""
WHAT = "algorithm file"
OURS = frozenset(
    ("wire", "host", "algorithms", "aggregator", "edge_client", "export", "simulation", "shoal")
)
"""Packages whose code is not a user's."""
LIBRARIES = tuple(get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of Python's own code and of installed libraries."""
model_files: set[str] = set()
"""Paths of the model files that this process has run, as their functions name them."""
_loaded: dict[tuple[str, str], Any] = {}
"""Classes by name and source, the latest last."""


def load(name: str, expected: str = "") -> tuple[Any, str]:
    """Return the object of an external name, and the state of its source.

    `expected` is the required state; empty for any.

    Raises:
        ConfigError: there is no such file, module or class, running it fails, or its source has
            changed.
    """
    if (name, expected) in _loaded:
        return _loaded[name, expected], expected
    place, _, attribute = name.rpartition(":")
    module = None
    if place == PYTHON:
        source = next((s for n, s in reversed(_loaded) if n == name), "")
        if not source:
            raise ConfigError(
                f"{name} is a class from Python code that this process does not have. Put it into "
                "a file of its own."
            )
    else:
        module = None if place.endswith(".py") else _imported(place, name)
        source = _source(getattr(module, "__file__", "") or "" if module else place)
    if expected not in ("", source):
        raise ConfigError(
            f"{name}: its source has changed since this run was set up; start it anew"
        )
    if (name, source) not in _loaded:
        where = f"module {place}" if module else f"{WHAT} {place}"
        namespace = vars(module or _run(Path(place), source))
        if attribute not in namespace:
            classes = (k for k, v in namespace.items() if isinstance(v, type))
            class_names = (k for k in classes if namespace[k].__module__ == namespace["__name__"])
            hint = ", ".join(class_names)
            hint = f"; its classes are {hint}" if hint else ""
            raise ConfigError(f"{where} has no {attribute!r}{hint}")
        _loaded[name, source] = namespace[attribute]
    return _loaded[name, source], source


def give(value: Any) -> tuple[str, str]:
    """Return name and source of a class from Python code.

    Other processes find it by this name if it is defined at the top level of a file or of an
    installed module. Otherwise only this process has it.

    Raises:
        ConfigError: it is not a class, or the path of its file cannot be part of a name.
    """
    if not isinstance(value, type):
        raise ConfigError(
            "A part of an algorithm must be a name, a class, or a class with options from "
            f"`choice`, got {value!r}"
        )
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None) or ""
    attribute = next((k for k, v in vars(module or value).items() if v is value), "")
    if module is None or not attribute or not file.endswith(".py"):
        name, source = f"{PYTHON}:{value.__name__}", "given"
        with suppress(OSError, TypeError):
            source = _digest(inspect.getsource(value).encode())
        while _loaded.get((name, source), value) is not value:
            source += "'"
        _loaded.pop((name, source), None)
    else:
        installed = "." in module.__name__ and module.__spec__ is not None
        name = anchored(f"{module.__name__ if installed else file}:{attribute}")
        source = _source(file)
    _loaded[name, source] = value
    return name, source


def anchored(name: str) -> str:
    """Return the name with the absolute path of its file, if it has a file.

    Raises:
        ConfigError: the path cannot be part of a name.
    """
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py"):
        return name
    file = str(Path(place).resolve())
    if marks := [mark for mark in ":+," if mark in file]:
        raise ConfigError(
            f"{WHAT} {file}: a path with {' or '.join(marks)} cannot be part of an algorithm's name"
        )
    return f"{file}:{attribute}"


def modules() -> list[ModuleType]:
    """Return the modules that another machine cannot import; their code has to be sent to it."""
    names = {component.__module__ for component in _loaded.values()}
    names |= {name for name in sys.modules if name.startswith(MODULES)}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def is_users(frame: FrameType) -> bool:
    """Return True if a frame is of a user's code, not of Shoal, Python or a library."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    file = frame.f_code.co_filename
    return package not in OURS and not file.startswith(("<", *LIBRARIES))


def failure(what: str, file: Path, error: BaseException) -> ConfigError:
    """Return an error with the file and line at which a user's code raised, and its notes."""
    names, text = (str(file), str(file.resolve())), str(error)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.lineno for frame in frames if frame.filename in names), None)
    if isinstance(error, SyntaxError):
        line, text = error.lineno, error.msg
    place = f", line {line}" if line else ""
    text = f"{what} {file}{place}: {type(error).__name__}: {text}".removesuffix(": ")
    return ConfigError(". ".join([text, *getattr(error, "__notes__", ())]))


@contextmanager
def blaming() -> Iterator[None]:
    """Run calls of user code, and turn its errors into a ConfigError that names the place.

    Raises:
        ConfigError: the user's code raised, or something that it called did.
    """
    try:
        yield
    except Exception as error:  # the user's code may raise anything
        files = model_files | {str(getattr(module, "__file__", "")) for module in modules()}
        cause = error.__cause__ if isinstance(error, ShoalError) else error
        while cause is not None:
            for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
                code = frame.f_code
                if code.co_filename in files and f"line {line}" not in str(error):
                    place = f"{code.co_filename}, line {line}, in {code.co_qualname}"
                    words = error if error is not cause else f"{type(cause).__name__}: {cause}"
                    raise ConfigError(f"{place}: {words}".removesuffix(": ")) from error
            cause = cause.__cause__ or cause.__context__
        raise


def _run(file: Path, source: str) -> ModuleType:
    """Return the module of a Python file in this state; the same contents are run once."""
    path = file.resolve()
    name = f"{MODULES}{file.stem}_{_digest(f'{path}{source}'.encode())}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        try:
            exec(compile(file.read_bytes(), str(path), "exec"), module.__dict__)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            del sys.modules[name]
            raise failure(WHAT, file, error) from error
    return sys.modules[name]


def _imported(place: str, name: str) -> ModuleType:
    """Return the module at `place`; `name` is the external name for errors."""
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name}: Python finds no module {error.name!r}") from None
        raise ConfigError(f"{name}: {error}") from error
    except Exception as error:  # the module's code may raise anything
        raise failure("module", Path(place), error) from error


def _source(file: str) -> str:
    """Return the digest of a Python file; empty for any other file."""
    try:
        return _digest(Path(file).read_bytes()) if file.endswith(".py") else ""
    except OSError as error:
        reason = error.strerror if Path(file).is_file() else "there is no such file"
        raise ConfigError(f"{WHAT} {file}: {reason}") from None


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:16]
