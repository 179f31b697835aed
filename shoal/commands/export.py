"""`shoal export`: model + algorithm -> what devices and the aggregator are given."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from algorithms.probe import make_probe, whole_model
from export.bundle import capture_graphs, make_bundle, save_probe
from export.onnx_graph import count_operators
from export.parity import check_parity
from shoal.commands import options as opt
from shoal.report import prepare_folder
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.simulate import build_objective
from wire.bundle import Bundle, new_key, private_pem, public_pem, read_private, unpack
from wire.errors import ConfigError


def export(
    out: Annotated[Path, typer.Option(help="Folder for device.shoal, server.pt2, signing.key and trust.pem.")],
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = "distfl",
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    privacy: opt.PrivacyName = "",
    seed: opt.Seed = 0,
    bundle_version: Annotated[int, typer.Option(min=1, help="Devices refuse a bundle older than one they have used.")] = 1,
    key: Annotated[Path | None, typer.Option(help="Signing key (PEM); OUT/signing.key is made when there is none.")] = None,
) -> None:
    """Export the training step for devices, check it against eager torch, and sign it."""
    console = Console()
    fleet = load_data(data)
    with console.status("capturing the step, checking 50 steps against eager torch"):
        bundle, parity = write_bundle(
            prepare_folder(out), fleet, opt.with_privacy(algorithm, privacy), seed, bundle_version, key, model, pretrain
        )
    console.print(f"{out / 'device.shoal'}: {len(bundle.payload):,} bytes, {bundle.manifest.name} version {bundle.manifest.version}")
    for name in bundle.manifest.graphs:
        operators = count_operators(bundle.graph_bytes(name))
        console.print(f"  {name}.onnx: {len(bundle.graph_bytes(name)):,} bytes, {sum(operators.values())} operators")
    console.print(f"largest difference to float64 after one step: {parity:.1e} of a tensor's scale")
    console.print(f"devices trust {out / 'trust.pem'}; keep {key or out / 'signing.key'} to yourself", soft_wrap=True)


def write_bundle(
    out: Path,
    fleet: FleetData,
    algorithm: str,
    seed: int,
    version: int = 1,
    key_file: Path | None = None,
    model: str = "",
    pretrain: str = "",
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
        capture_graphs(objective, shape),
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
