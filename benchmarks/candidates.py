"""Candidates for a personal model besides those of `personal`, and other rules to choose by:
``python -m benchmarks.candidates``.

For each device of a fleet, after the same rounds: the losses of every candidate on the windows that
the device holds out, and its number of correct test windows. From these,
`benchmarks.candidate_rules` computes the choice of every rule among every set of candidates. A run
is a file in the folder (half a minute each), and is not repeated. The data sets are those of
`benchmarks.personal`.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from aggregator.aggregation.stored import load_state, work_of
from aggregator.fleet.desired import by_labels, trained_group
from aggregator.fleet.plan import make_plan
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.optimizers.base import slot_of
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.memory import Memory, in_units, mixed, neighbours
from benchmarks.candidate_rules import SHARES, UNJUDGED, text
from benchmarks.results.report import describe_machine, put
from edge_client.data.layout import PARTS, fit_windows, windows_for
from edge_client.work.job import PlanExecution
from export.describe import describe_bundle
from host.threads import one_thread
from simulation.datasets.catalog import load_data
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.workers.device_host import repeatable_secret
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from wire.arrays import names
from wire.arrays.tensors import Tensors, decode_tensors
from wire.messages import Verb

OUT = Path(__file__).parent / "results" / "candidates.json"
SCENES = (
    ("watch", "time"),
    ("uci-har", "time"),
    ("geotec-phone", "session"),
    ("geotec-watch", "session"),
)
LABELS = ("all", "20", "5", "1")
ROUNDS, EPOCHS, SEEDS = 12, 2, 3
RUNS = ("personal", "fedavg", "local")
SHRUNK = 0.5
"""Shrinkage of a covariance towards a multiple of the identity."""


class Fleet:
    """A finished run of `personal`, and those of FedAvg and of training alone; what its devices
    could have kept."""

    def __init__(self, data: str, split: str, labels: str, seed: int) -> None:
        fleet, spec = load_data(data), read_algorithm("personal")
        settings = SimulationSettings(
            rounds=ROUNDS,
            local_epochs=EPOCHS,
            seed=seed,
            labels=labels,
            split=split,
            algorithm=spec,
        )
        self.runs = {
            n: simulate(fleet, msgspec.structs.replace(settings, algorithm=read_algorithm(n)))
            for n in RUNS
        }
        self.run = self.runs["personal"]
        devices = self.run.data
        objective = objective_for_fleet(devices, spec, seed)
        keeping = getattr(objective.graphs()["memorise"], "__self__", None)
        assert isinstance(keeping, Keeping)
        self.keeping, self.graphs = keeping, EagerGraphs(objective)
        self.bundle = describe_bundle(
            objective, name=devices.name, classes=devices.classes, window=devices.window
        )
        campaign, algorithm = self.run.campaign, make_algorithm(spec)
        state = load_state(campaign.version, self.run.blobs)
        self.closing = algorithm.programs(state, work_of(campaign.settings), campaign.models)[
            "closing"
        ]

    def device(self, device_id: str) -> dict[str, Any]:
        """Return the measurements of a device's candidates for `benchmarks.candidate_rules`."""
        windows, accuracies = (
            self.run.data.devices[device_id],
            {name: run.summary.devices for name, run in self.runs.items()},
        )
        closing = by_labels(self.closing, windows.num_train, trains=True)
        graphs = [getattr(verb, "graph", "") for verb in closing]
        memorise, recalibrated = (
            closing[graphs.index("memorise")],
            closing[: graphs.index("recalibrate") + 1],
        )
        group, fleet = (
            self._served(self.run, device_id),
            self._served(self.runs["fedavg"], device_id),
        )
        tuned = self._after(device_id, closing[: graphs.index("blend")], group)
        moving = self.keeping.moving(_torch(tuned))
        before, after = (
            {key: tuned[slot_of(key, "before")] for key in moving},
            {key: tuned[key] for key in moving},
        )
        own = self.runs["local"].models.of_device(device_id)
        alone = {
            names.name_of(key): value
            for key, value in own.items()
            if names.role_of(key) == names.PRIVATE
        }
        models: dict[str, Tensors] = {
            "group": {key: group[key] for key in moving},
            "group+bn": before,
            "fleet": {key: fleet[key] for key in moving},
            "fleet+bn": self._after(device_id, recalibrated, {**group, **fleet}),
            "alone": {key: alone[names.name_of(key)] for key in moving},
        }
        models |= {
            f"tuned {way}": {key: way * after[key] + (1 - way) * before[key] for key in moving}
            for way in (0.25, 0.5, 0.75, 1.0)
        }
        blended = self._after(device_id, closing[: graphs.index("blend") + 1], group)
        models[UNJUDGED] = {key: blended[key] for key in moving}
        row: dict[str, Any] = {
            "device": device_id,
            "num_test": windows.num_test,
            "heldout": {},
            "test": {},
        }
        row |= {name: accuracies[name][device_id].accuracy for name in RUNS}
        row["trained"] = any(bool((after[key] != before[key]).any()) for key in moving)
        row["elsewhere"] = float(tuned[names.slot("memory.elsewhere")])
        for name, model in models.items():
            tensors = _torch(
                self._after(device_id, (memorise,), group, {key: model[key] for key in moving})
            )
            memory = self.keeping.memorised(tensors)
            assert isinstance(memory, Memory)
            row["finite"] = row.get("finite", True) and bool(memory.finite)
            losses, judged = memory.losses(SHARES)
            self._take(
                row, name, losses[judged > 0], self._tested(tensors, device_id, memory, None)
            )
            if name in ("group+bn", "tuned 0.75"):
                self._take(
                    row,
                    f"gaussian {name}",
                    gaussian_losses(memory),
                    self._tested(tensors, device_id, memory, gaussian(memory)),
                )
        return row

    @staticmethod
    def _take(row: dict[str, Any], name: str, losses: Tensor, right: list[float]) -> None:
        row["heldout"][name] = np.round(losses.T.numpy(), 4).tolist()
        row["test"][name] = right

    @staticmethod
    def _served(run: SimulationResult, device_id: str) -> Tensors:
        """The model that a run gave a device in the end."""
        key = trained_group(run.campaign, device_id)
        return decode_tensors(run.blobs.get(run.campaign.models[key]))[0]

    def _after(
        self,
        device_id: str,
        verbs: tuple[Verb, ...],
        model: Tensors,
        others: Mapping[str, Any] | None = None,
    ) -> Tensors:
        """All tensors of a device when it has carried out these verbs, from `model` and `others` in
        the place of parts of it."""
        campaign, manifest = self.run.campaign, self.bundle.manifest
        windows = windows_for(
            manifest, fit_windows(self.run.data.devices[device_id], manifest.window, PARTS)
        )
        digest = campaign.models[trained_group(campaign, device_id)]
        plan = make_plan(campaign.settings, campaign.round + 1, device_id, digest, verbs)
        job = PlanExecution(
            self.bundle, self.graphs, windows, plan, lambda _: {}, repeatable_secret, lambda: None
        )
        job.receive(digest, {spec.key: model[spec.key] for spec in manifest.received()})
        job.tensors |= {key: np.asarray(value, np.float32) for key, value in (others or {}).items()}
        job.carry_out()
        return job.tensors

    def _tested(
        self,
        tensors: TorchTensors,
        device_id: str,
        memory: Memory,
        head: tuple[Tensor, Tensor] | None,
    ) -> list[float]:
        """The share of the test windows that is right, for every share of neighbours, or of a head
        of Gaussians, in the answer."""
        windows = self.run.data.devices[device_id]
        x, y = torch.from_numpy(windows.test_x), torch.from_numpy(windows.test_y)
        with torch.no_grad():
            made = self.keeping.whole.answer(tensors, x)
            guess = self.keeping.answers.guess(made.logits)
            keys = in_units(self.keeping.keys_of(made), memory.units)
            if head is not None:
                answers = [share * told(keys, head) + (1 - share) * guess for share in SHARES]
            else:
                labels = memory.answering()[names.memory("labels")]
                near = neighbours(keys, memory.scaled, memory.evidence)
                answers = [mixed(guess, near, labels, share) for share in SHARES]
        return [
            float((answer.argmax(1) == y).float().mean()) if len(y) else float("nan")
            for answer in answers
        ]


def gaussian(memory: Memory, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A linear head (K, classes), (classes,) of a Gaussian for each class, with one covariance: the
    generative classifier of C. McLaughlin and L. Su, Personalized Federated Learning via Feature
    Distribution Adaptation (NeurIPS 2024), of the device's own windows. Windows without labels
    count by their soft ones; those `held` (M,) out are left out."""
    hidden = torch.zeros_like(memory.holdout) if held is None else held
    filled = (memory.filled & (hidden <= 0)).to(memory.keys.dtype).unsqueeze(1)
    soft = memory.smoothed(memory.weights * (1 - hidden), memory.has_label & (hidden <= 0)) * filled
    count, total = soft.sum(0), soft.sum().clamp(min=1e-6)
    means = (soft.T @ memory.scaled) / count.clamp(min=1e-6).unsqueeze(1)
    within = (memory.scaled * soft.sum(1, keepdim=True)).T @ memory.scaled / total - (
        means * (count / total).unsqueeze(1)
    ).T @ means
    ridge = within.diagonal().mean().clamp(min=1e-6) * torch.eye(len(within))
    weights = torch.linalg.solve((1 - SHRUNK) * within + SHRUNK * ridge, means.T)
    offsets = (count / total).clamp(min=1e-6).log() - (means * weights.T).sum(1) / 2
    return weights, torch.where(count > 1e-3, offsets, -1e4)


def told(keys: Tensor, head: tuple[Tensor, Tensor]) -> Tensor:
    """The probabilities (n, classes) that a head of Gaussians gives representations (n, K)."""
    return torch.softmax(keys @ head[0] + head[1], 1)


def gaussian_losses(memory: Memory) -> Tensor:
    """The losses (held out, shares) of the windows held out, for each share of a head of Gaussians
    in the answer."""
    mask = (memory.holdout > 0) & memory.has_label
    probability = told(memory.scaled, gaussian(memory, mask.to(memory.keys.dtype)))
    rows = torch.stack([share * probability + (1 - share) * memory.guess for share in SHARES], 1)
    return torch.stack(
        [memory.of.losses(rows[:, at], memory.labels) for at in range(len(SHARES))], 1
    )[mask]


def _torch(tensors: Tensors) -> TorchTensors:
    return {key: torch.as_tensor(value) for key, value in tensors.items()}


def main() -> None:
    """Make the runs that are missing, write the results, print the tables."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument(
        "--folder", type=Path, default=Path("runs/candidates"), help="where finished runs are kept"
    )
    options = reader.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cells: dict[str, list[list[dict[str, Any]]]] = {}
    with one_thread():
        for seed in range(SEEDS):
            for labels in LABELS:
                for data, split in SCENES:
                    path = options.folder / f"{data}-{split}-{labels}-{seed}.json"
                    if not path.exists():
                        fleet = Fleet(data, split, labels, seed)
                        path.write_text(
                            json.dumps(
                                [
                                    fleet.device(device_id)
                                    for device_id in sorted(fleet.run.data.devices)
                                ]
                            )
                        )
                        print(path.name, flush=True)
                    rows = json.loads(path.read_text())
                    cells.setdefault(f"{data}, {split}, {labels}", []).append(
                        [row for row in rows if row["num_test"]]
                    )
    found = text(cells)
    OUT.write_text(json.dumps({"machine": describe_machine(), "rows": found.rows}, indent=1) + "\n")
    put("candidates", found.page)
    print(found.page)


if __name__ == "__main__":
    main()
