"""The commands `shoal export` and `shoal export inspect`.

The first makes the files for devices and aggregator from a model and an algorithm; the second shows
the content of a bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from host.files import file_error
from shoal.command import Options, command, print_json
from shoal.commands import options as opt
from simulation.settings import ExportWords, SimulationSettings
from wire.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from wire.bundle import Bundle


OPTIONS = ("algorithm", "model", "pretrain", "privacy", *opt.CUTS)

export = typer.Typer(
    rich_markup_mode=None,
    help="Export the training step for devices, check it against eager torch, and sign it.",
)


@export.callback(invoke_without_command=True)
@command(loads="shoal.api.exporting")
def write(
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for device.shoal, server.pt2, signing.key and trust.pem."),
    ] = None,
    data: opt.Data = "watch",
    words: Annotated[
        dict[str, Any],
        Options((SimulationSettings,), only=OPTIONS),
    ],
    bundled: Annotated[dict[str, Any], Options((ExportWords,))],
    key: Annotated[
        Path | None,
        typer.Option(help="Signing key (PEM); OUT/signing.key, made if missing, when not given."),
    ] = None,
    runtimes: Annotated[
        str, typer.Option(help="Runtimes of devices: onnx, or onnx,executorch.")
    ] = "onnx",
) -> dict[str, Any]:
    """Export the training step for devices, check it against eager torch, and sign it."""
    from rich.console import Console

    from export.inspect import inspect_bundle
    from export.publish import DEVICE_FILE, KEY_FILE, TRUST_FILE
    from shoal.api.exporting import export
    from shoal.waiting import working

    if out is None:
        raise ConfigError(
            "shoal export needs --out, a folder to write to; `shoal export inspect FILE` looks "
            "into a bundle"
        )
    console = Console()
    settings = words | bundled | {"key": key, "runtimes": runtimes}
    with working(console) as say:
        published = export(data, out, **settings, on_progress=say)
    bundle = published.bundle
    console.print(
        f"{out / DEVICE_FILE}: {len(bundle.payload):,} bytes, {bundle.manifest.name} version "
        f"{bundle.manifest.version}"
    )
    for row in inspect_bundle(bundle):
        console.print(
            f"  {row.file}: {row.num_bytes:,} bytes, {sum(row.operators.values())} operators"
        )
    console.print(
        f"largest difference to float64 after one step: {published.parity.step_error:.1e} of a "
        "tensor's scale"
    )
    console.print(
        f"devices trust {out / TRUST_FILE}; keep {key or out / KEY_FILE} secret",
        soft_wrap=True,
    )
    console.print(f"Next: `shoal serve --folder FOLDER --bundle {out}`.", soft_wrap=True)
    return {**_about(bundle), "step_error": published.parity.step_error, "folder": str(out)}


@export.command("inspect")
@command()
def show(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle, or the folder that `shoal export` wrote.")
    ],
    operators: Annotated[
        bool, typer.Option("--operators", help="List the operators of every graph too.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Show what is in a bundle.

    For each graph and runtime it prints the size, the largest batch, the memory for that batch, the
    number of operators, and the number of those that XNNPACK carries out.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from export.inspect import inspect_bundle
    from export.publish import DEVICE_FILE
    from wire.bundle import unpack

    path = bundle / DEVICE_FILE if bundle.is_dir() else bundle
    try:
        read = unpack(path.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"bundle {path}", error)) from None
    except BundleError as error:
        raise BundleError(f"{path}: expected a bundle that `shoal export` wrote: {error}") from None
    manifest, console, rows = read.manifest, Console(), inspect_bundle(read)
    if as_json:
        print_json({**_about(read), "created_by": manifest.created_by, "graphs": rows})
        return
    made_with = ", ".join(f"{name} {number}" for name, number in manifest.created_by.items())
    console.print(
        f"{manifest.name} version {manifest.version}: {manifest.algorithm}, {len(read.payload):,} "
        f"bytes, made with {made_with}"
    )
    table = Table(
        "graph",
        "runtime",
        "size",
        "batch",
        "memory",
        "operators",
        "XNNPACK",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        largest = f"{row.max_batch:,}" if row.max_batch else ""
        memory = f"{row.memory_bytes / 1e6:.1f} MB" if row.memory_bytes else ""
        size = f"{row.num_bytes / 1e3:.1f} KB"
        delegated = sum(n for name, n in row.operators.items() if name.startswith("delegated/"))
        table.add_row(
            row.graph,
            row.runtime,
            size,
            largest,
            memory,
            str(sum(row.operators.values())),
            str(delegated or ""),
        )
    console.print(table)
    for row in rows if operators else []:
        console.print(
            f"{row.graph} on {row.runtime}: "
            + ", ".join(f"{name} {count}" for name, count in row.operators.items()),
            soft_wrap=True,
        )


def _about(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "algorithm": manifest.algorithm,
        "num_bytes": len(bundle.payload),
    }
