"""`shoal export`: model + algorithm -> what devices and the aggregator are given; `shoal export inspect`: what is in a bundle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from algorithms.probe import make_probe, whole_model
from export.bundle import MAX_BATCH, RUNTIMES, capture_graphs, make_bundle, save_probe
from export.inspect import inspect_bundle
from export.parity import check_parity
from export.runtimes import ONNX
from shoal.commands import options as opt
from shoal.folders import prepare_folder
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.simulate import build_objective
from wire.bundle import Bundle, new_key, private_pem, public_pem, read_private, unpack
from wire.errors import ConfigError

export = typer.Typer(help="Export the training step for devices, check it against eager torch, and sign it.")


@export.callback(invoke_without_command=True)
def write(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for device.shoal, server.pt2, signing.key and trust.pem.")] = None,
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = "distfl",
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
    with console.status("capturing the step, checking 50 steps against eager torch"):
        bundle, parity = write_bundle(
            *(prepare_folder(out), fleet, opt.with_privacy(algorithm, privacy), seed, bundle_version, key, model, pretrain),
            runtimes=runtimes.split(","),
            max_batch=max_batch,
        )
    console.print(f"{out / 'device.shoal'}: {len(bundle.payload):,} bytes, {bundle.manifest.name} version {bundle.manifest.version}")
    for row in inspect_bundle(bundle):
        console.print(f"  {row.file}: {row.num_bytes:,} bytes, {row.num_operators} operators")
    console.print(f"largest difference to float64 after one step: {parity:.1e} of a tensor's scale")
    console.print(f"devices trust {out / 'trust.pem'}; keep {key or out / 'signing.key'} to yourself", soft_wrap=True)


@export.command("inspect")
def show(
    bundle: Annotated[Path, typer.Argument(help="A bundle, or the folder that `shoal export` wrote it to.")],
    operators: Annotated[bool, typer.Option("--operators", help="Also list every graph's operators.")] = False,
) -> None:
    """What is in a bundle: for each graph and runtime its size, the largest batch, the memory planned for that, how many operators, and
    how many of these XNNPACK carries out."""
    path = bundle / "device.shoal" if bundle.is_dir() else bundle
    try:
        read = unpack(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"bundle {path}: {error.strerror}") from None
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


def write_bundle(
    out: Path,
    fleet: FleetData,
    algorithm: str,
    seed: int,
    version: int = 1,
    key_file: Path | None = None,
    model: str = "",
    pretrain: str = "",
    runtimes: Sequence[str] = (ONNX,),
    max_batch: int = MAX_BATCH,
) -> tuple[Bundle, float]:
    """Write a bundle, its probe and its keys into `out`. Returns the bundle and the parity check's largest one-step difference.

    Raises:
        ConfigError: the key cannot be read, or the model cannot be captured.
        ParityError: the exported step does not do what eager torch does.
    """
    objective = build_objective(fleet, algorithm, seed, model, pretrain)
    shape = fleet.window.shape
    key_path = key_file or out / "signing.key"
    if key_path.exists():
        key = read_private(key_path.read_bytes())
    elif key_file is not None:
        raise ConfigError(f"--key {key_file}: there is no such file")
    else:
        key = new_key()
        key_path.touch(mode=0o600)
        key_path.write_bytes(private_pem(key))
    payload = make_bundle(
        capture_graphs(objective, shape, runtimes, max_batch),
        name=fleet.name,
        bundle_version=version,
        objective=objective,
        classes=fleet.classes,
        window=fleet.window,
        key=key,
    )
    bundle = unpack(payload, key.public_key())
    some = next(iter(fleet.devices.values()))
    parity = check_parity(bundle, objective, some.train_x, some.train_y)
    (out / "server.pt2").write_bytes(save_probe(make_probe(objective.model, shape), whole_model(objective.model)))
    (out / "trust.pem").write_bytes(public_pem(key))
    (out / "device.shoal").write_bytes(payload)
    return bundle, parity.step_error
