"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated, Any

import typer

Data = Annotated[str, typer.Option(help="watch, uci-har, or the path of a .npz (X, y, subject[, split]) or of UCI HAR.")]
AlgorithmName = Annotated[str, typer.Option("--algorithm", help="fedavg or distfl.")]
Signature = Annotated[
    str, typer.Option(help="What DistFL knows a device by: responses (the paper's), noise, statistics, labels, or both (all but noise).")
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of training.")]
LocalEpochs = Annotated[int, typer.Option(min=1, help="Passes over a device's windows in each round.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same result.")]
BatchSize = Annotated[int, typer.Option(min=2, max=4096, help="Windows in a batch.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate; the algorithm's own when not given.")]
Devices = Annotated[int | None, typer.Option(min=1, help="Only the first N devices of the data.")]
Out = Annotated[Path, typer.Option(help="Folder for summary.json, pictures and the report.")]


def algorithm_options(algorithm: str, signature: str) -> dict[str, Any]:
    """The options an algorithm is made with; only those that differ from its own defaults."""
    return {"signature": signature} if algorithm == "distfl" and signature != "both" else {}
