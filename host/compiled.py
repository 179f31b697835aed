"""Functions of named tensors, compiled ahead of time by torch's inductor and kept in the cache by
what they were made of.

The function is traced into ordinary operators first, gradients included. The next run of the same
function loads it in an instant.
"""

import hashlib
import logging
import platform
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._C._aoti import (
    AOTIModelPackageLoader,
)  # what torch._inductor's loader calls after seconds of looking at the compiler
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.core.contract import TorchTensors
from algorithms.models.reading.plain import PlainOperators
from host.cache import cache_folder
from host.compiler import CannotCompile
from host.traced import drop_unread

log = logging.getLogger("shoal.compiled")

Function = Callable[[TorchTensors], TorchTensors]

OPTIONS = {"cpp.threads": 1}
"""Of inductor: who calls has one thread."""


def compile_ahead(function: Function, example: TorchTensors) -> Function:
    """The same function, compiled for tensors of the shapes and dtypes in `example`. If it was
    compiled before, the cache has it.

    Raises:
        CannotCompile: the cache folder cannot be written.
    """
    names, outputs = list(example), list[str]()

    def positional(*values: Tensor) -> list[Tensor]:
        results = function(dict(zip(names, values, strict=True)))
        outputs[:] = results
        return list(results.values())

    with torch.no_grad(), PlainOperators():
        traced = make_fx(positional, _allow_non_fake_inputs=True)(*example.values())
        read = drop_unread(traced, names)
        values = [example[name] for name in read]
        path = cache_folder("compiled") / f"{_digest(traced, values)}.pt2"
        if not path.exists():
            _build(traced, values, path)
        try:
            program = _load(path)
        except RuntimeError as error:
            log.warning("%s cannot be loaded (%s) and is compiled anew", path, error)
            _build(traced, values, path)
            program = _load(path)

    def run(tensors: TorchTensors) -> TorchTensors:
        results = program.boxed_run(
            [tensors[name].contiguous() for name in read]
        )  # compiled for these strides, and they are not checked
        return dict(zip(outputs, results, strict=True))

    return run


def _load(path: Path) -> AOTIModelPackageLoader:
    return AOTIModelPackageLoader(str(path), "model", False, 1, -1)


def _build(traced: GraphModule, values: Sequence[Tensor], path: Path) -> None:
    """Processes that build at the same time do so each for itself; the last rename wins.

    Raises:
        CannotCompile: the cache folder cannot be written.
    """
    from torch._inductor import aoti_compile_and_package  # takes two seconds to load

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its own parts
            program = torch.export.export(traced, tuple(values))
            made = aoti_compile_and_package(
                program, package_path=f"{folder}/program.pt2", inductor_configs=dict(OPTIONS)
            )
            Path(made).replace(path)
    except OSError as error:
        raise CannotCompile(f"compiled code cannot be kept in {path.parent}: {error}") from error


def _digest(traced: GraphModule, values: Sequence[Tensor]) -> str:
    """A hash of everything that decides what is compiled: operators, constants, shapes, options,
    torch and the processor."""
    shapes = [(value.dtype, tuple(value.shape)) for value in values]
    made_of = (traced.code, shapes, OPTIONS, torch.__version__, platform.machine(), _processor())
    digest = hashlib.sha256(repr(made_of).encode())
    for name, value in sorted(traced.named_buffers()):  # tracing makes constants buffers
        digest.update(
            name.encode()
            + str((value.dtype, value.shape)).encode()
            + value.contiguous().numpy().tobytes()
        )
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What the processor can do; its name where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line for line in lines if line.startswith(("flags", "Features"))), platform.processor()
    )
