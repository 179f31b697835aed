"""Code that a user wrote, run from a file: what it defines, or one error that names the file and
the line."""

import hashlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from wire.errors import ConfigError

MODULES = "shoal_outside_"
"""Begins the names of modules that were run from files: with it pickles find their classes."""

model_files: set[str] = set()
"""The files of models that this process has run, as their functions name them."""


def digest_of(file: Path, what: str) -> str:
    """What tells this state of a file from others. `what` begins the error.

    Raises:
        ConfigError: it cannot be read.
    """
    return _digest(_read(file, what))


def run_file(file: Path, what: str) -> ModuleType:
    """The module that a Python file makes. The same file with the same contents is run once; one
    that has changed is another module.

    Raises:
        ConfigError: it cannot be read, or it raises; the text names the line.
    """
    code = _read(file, what)
    path = file.resolve()
    name = f"{MODULES}{file.stem}_{_digest(str(path).encode() + code)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        del sys.modules[name]
        raise failure(what, file, error) from error
    return module


def failure(what: str, file: Path, error: BaseException) -> ConfigError:
    """What to say when a user's code raises: the file and the line of it where it did."""
    names = (str(file), str(file.resolve()))
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = (
        error.lineno
        if isinstance(error, SyntaxError)
        else next((f.lineno for f in frames if f.filename in names), None)
    )
    place = f", line {line}" if line else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ConfigError(f"{what} {file}{place}: {type(error).__name__}: {text}".removesuffix(": "))


def _read(file: Path, what: str) -> bytes:
    if not file.is_file():
        raise ConfigError(f"{what} {file}: there is none")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {file}: {error.strerror}") from None


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:16]
