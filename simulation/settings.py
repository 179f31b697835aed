"""Settings of a simulation as users write them, for the command line and for Python.

Each has a type, a range and a text (`host.settings`). This module imports nothing that takes time.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from aggregator.core.training import TrainingSettings
from algorithms.spec import DEFAULT_ALGORITHM
from host.settings import LARGEST, about

BackendName = Literal["auto", "native", "hybrid", "eager", "batched", "messages"]
Exportable = Literal["require", "warn", "off"]


class EngineSettings(msgspec.Struct, frozen=True):
    """Settings of the engine. They change no result beyond rounding."""

    backend: Annotated[BackendName, about("Backend that runs the graphs (docs/scale.md).")] = "auto"
    workers: Annotated[
        int,
        about(
            "Number of devices that train at the same time; 0: one for each core (batched: 128). "
            "With a cluster, number of its workers; 0: one for each CPU.",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    checkpoint: Annotated[
        Path | None,
        about("Folder that stores every round, so that an interrupted run can continue."),
    ] = None
    cluster: Annotated[
        str,
        about(
            "Ray cluster that does the work: its address, auto, local, or any (auto, else local; "
            "docs/scale.md)."
        ),
    ] = ""
    device: Annotated[
        str,
        about(
            "Torch device of backend batched: cuda, cuda:1 or cpu; empty: cuda. With backend auto: "
            "auto measures whether CUDA is faster than the processor, where torch finds it."
        ),
    ] = ""
    bf16: Annotated[bool, about("Let backend batched multiply in bfloat16.")] = False


class SimulationSettings(TrainingSettings[Any], frozen=True):
    """Training and scenario of a simulation, as words and numbers.

    The algorithm is a name, or an algorithm that is already read.
    """

    algorithm: Annotated[
        Any,
        about(
            "One choice or several: distfl, dbe+distfl+irls, ifca:k=4, FILE.py:CLASS. `shoal "
            "algorithms` lists them."
        ),
    ] = DEFAULT_ALGORITHM
    lr: Annotated[
        float | None,
        about("Learning rate; the algorithm's own when not given.", ge=0, le=1e6),
    ] = None
    partition: Annotated[
        str,
        about(
            "Assignment of windows to devices: user, iid, dirichlet:alpha=0.1:devices=20, "
            "rotation, ... (docs/partitions.md)."
        ),
    ] = "user"
    attack: Annotated[
        str,
        about(
            "Attackers among the devices: label-flip:share=0.2, backdoor, sign-flip, alie, ... "
            "(docs/attacks.md)."
        ),
    ] = ""
    privacy: Annotated[
        str,
        about(
            "Mechanism: gaussian, shared-gaussian (with --secret), local-gaussian or dp-sgd, with "
            "options: gaussian:clip_norm=1."
        ),
    ] = ""
    devices: Annotated[
        int | None,
        about(
            "Number of devices: the first ones of data that have owners; with another partition, "
            "those to which windows are assigned.",
            ge=1,
            le=LARGEST,
        ),
    ] = None
    model: Annotated[
        str,
        about("Name of a model, or FILE.py:FUNCTION; the usual one for the data when not given."),
    ] = ""
    exportable: Annotated[
        Exportable,
        about(
            "If devices cannot train the model (ONNX, ExecuTorch): refuse it (require), say so "
            "(warn), or do not check (off)."
        ),
    ] = "warn"
    pretrain: Annotated[
        str,
        about(
            "Other data, by name or path, that the extractor is trained on before round 1 (for "
            "cgau)."
        ),
    ] = ""
    labels: Annotated[
        str,
        about(
            "Labelled windows of each class on a device: all, a number, or none (newcomers "
            "without labels)."
        ),
    ] = "all"
    split: Annotated[
        str,
        about(
            "Division of each device's windows for training and testing: own (that of the data), "
            "time, session, random."
        ),
    ] = "own"
    newcomers: Annotated[
        int,
        about(
            "Number of devices that join after training; 0: none, but a quarter with --labels "
            "none.",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    cohort: Annotated[
        int,
        about("Number of devices that are drawn for each round; 0: all.", ge=0, le=LARGEST),
    ] = 0
    window: Annotated[
        int,
        about(
            "Samples of a window that is cut from recordings; 0: that of shoal.toml, or 128.",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    stride: Annotated[
        int,
        about(
            "Samples between the starts of two windows of recordings; 0: that of shoal.toml, or "
            "half a window and at most 64.",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    steps: Annotated[
        int,
        about("Steps with a class of their own in each window of recordings; 0: none.", ge=0),
    ] = 0
    rate: Annotated[
        float,
        about(
            "Samples a second to which recordings are brought; 0: that of shoal.toml, or of most.",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    profiles: Annotated[
        str,
        about(
            "Speeds of devices on a virtual clock: phones, boards, trace:devices=FILE.csv "
            "(docs/speeds.md)."
        ),
    ] = ""
    policy: Annotated[
        str,
        about("Policy of rounds on that clock: sync, over-select:over=0.3, buffered:buffer=10."),
    ] = ""


class ComparisonWords(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a comparison of algorithms."""

    seeds: Annotated[
        int | None,
        about(
            "Number of seeds, 0 to N - 1; 1 when not given, 3 with --scenarios.",
            ge=1,
            le=LARGEST,
        ),
    ] = None
    target: Annotated[
        float | None,
        about("Accuracy up to which rounds are counted; 95 % of the best if empty.", ge=0, le=1),
    ] = None
    workers: Annotated[
        int | None,
        about(
            "Number of runs at the same time; one for each core when not given.", ge=1, le=LARGEST
        ),
    ] = None


class ExportWords(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the export of a bundle."""

    seed: Annotated[int, about("Seed: the same seed gives the same result.", ge=0)] = 0
    bundle_version: Annotated[
        int, about("Devices refuse a bundle older than one they have used.", ge=1)
    ] = 1
    max_batch: Annotated[
        int, about("Maximum number of windows in a batch of ExecuTorch's programs.", ge=8)
    ] = 64
