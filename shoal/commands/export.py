"""`shoal export`: model + algorithm -> what devices and the aggregator are given; `shoal export inspect`: what is in a bundle."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from export.bundle import MAX_BATCH, RUNTIMES
from export.inspect import inspect_bundle
from export.publish import DEVICE_FILE, KEY_FILE, TRUST_FILE
from export.runtimes import ONNX
from shoal.api.exporting import write_bundle
from shoal.commands import options as opt
from shoal.warn import warn
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import one_class
from wire.bundle import unpack
from wire.errors import BundleError, ConfigError

export = typer.Typer(rich_markup_mode=None, help="Export the training step for devices, check it against eager torch, and sign it.")


@export.callback(invoke_without_command=True)
def write(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for device.shoal, server.pt2, signing.key and trust.pem.")] = None,
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = opt.DEFAULT_ALGORITHM,
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    privacy: opt.PrivacyName = "",
    seed: opt.Seed = 0,
    bundle_version: Annotated[int, typer.Option(min=1, help="Devices refuse a bundle older than one they have used.")] = 1,
    key: Annotated[Path | None, typer.Option(help="Signing key (PEM); OUT/signing.key is made when there is none.")] = None,
    runtimes: Annotated[str, typer.Option(help=f"What devices train with: {ONNX}, or {','.join(RUNTIMES)}.")] = ONNX,
    max_batch: Annotated[int, typer.Option(min=8, help="Windows in a batch of ExecuTorch's programs, at most.")] = MAX_BATCH,
) -> None:
    """Export the training step for devices, check it against eager torch, and sign it."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise ConfigError("shoal export needs --out, a folder to write to; `shoal export inspect FILE` looks into a bundle")
    console = Console()
    fleet = load_data(data)
    warn(one_class(fleet))
    with console.status("making the model") as status:
        model_and_more = (algorithm, model, pretrain, privacy, seed, bundle_version, key, runtimes.split(","), max_batch)
        published = write_bundle(fleet, out, *model_and_more, lambda text: status.update(f"exporting: {text}"))
    bundle = published.bundle
    console.print(f"{out / DEVICE_FILE}: {len(bundle.payload):,} bytes, {bundle.manifest.name} version {bundle.manifest.version}")
    for row in inspect_bundle(bundle):
        console.print(f"  {row.file}: {row.num_bytes:,} bytes, {row.num_operators} operators")
    console.print(f"largest difference to float64 after one step: {published.parity.step_error:.1e} of a tensor's scale")
    console.print(f"devices trust {out / TRUST_FILE}; keep {key or out / KEY_FILE} to yourself", soft_wrap=True)


@export.command("inspect")
def show(
    bundle: Annotated[Path, typer.Argument(help="A bundle, or the folder that `shoal export` wrote it to.")],
    operators: Annotated[bool, typer.Option("--operators", help="Also list every graph's operators.")] = False,
) -> None:
    """What is in a bundle: for each graph and runtime its size, the largest batch, the memory planned for that, how many operators, and
    how many of these XNNPACK carries out."""
    path = bundle / DEVICE_FILE if bundle.is_dir() else bundle
    try:
        read = unpack(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"bundle {path}: {error.strerror}") from None
    except BundleError as error:
        raise BundleError(f"{path}: expected a bundle that `shoal export` wrote: {error}") from None
    manifest, console = read.manifest, Console()
    made_with = ", ".join(f"{name} {number}" for name, number in manifest.created_by.items())
    console.print(f"{manifest.name} version {manifest.version}: {manifest.algorithm}, {len(read.payload):,} bytes, made with {made_with}")
    table = Table(
        "graph", "runtime", "size", "batch", "memory", "operators", "XNNPACK", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    rows = inspect_bundle(read)
    for row in rows:
        largest = f"{row.max_batch:,}" if row.max_batch else ""
        memory = f"{row.memory_bytes / 1e6:.1f} MB" if row.memory_bytes else ""
        size = f"{row.num_bytes / 1e3:.1f} KB"
        table.add_row(row.graph, row.runtime, size, largest, memory, str(row.num_operators), str(row.num_delegated or ""))
    console.print(table)
    for row in rows if operators else []:
        console.print(
            f"{row.graph} on {row.runtime}: " + ", ".join(f"{name} {count}" for name, count in row.operators.items()), soft_wrap=True
        )
