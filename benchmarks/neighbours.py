"""Neighbours by what a fleet could tell its devices: ``python -m benchmarks.neighbours``.

A device looks its neighbours up by means over time in units of its own. Here it is given more: the
covariance within classes that the devices of its group have together, the 16 directions in which
classes differ most against it (linear discriminant analysis), or class prototypes with the fleet's
prior (two-covariance model: S. Ioffe, ECCV 2006), whose probabilities are multiplied with the
device's answers. All three need sums over the windows of each device of every class, which devices
do not send. Fleets and newcomers are those of `benchmarks.newcomers`, and so is ``--folder``.
Writes ``benchmarks/results/neighbours.json`` and a section of RESULTS.md.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from aggregator.fleet.desired import by_labels
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.memory import empty
from benchmarks.newcomers import (
    DATA,
    SEEDS,
    SPEC,
    cell,
    reception_of,
    trained,
    with_labels,
)
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from edge_client.work.executor import Executor
from edge_client.work.job import PlanExecution
from host.threads import one_thread
from simulation.engine.workers.device_host import repeatable_secret
from simulation.objective import objective_for_fleet
from wire.messages import Verb

OUT = Path(__file__).parent / "results" / "neighbours.json"
LABELS = (0, 1, 2, 5, 20)
WAYS = ("own units", "group's covariance", "16 directions", "prototypes")
RIDGE, DIRECTIONS, DRIFT, TAIL, LEAST = 0.05, 16, 0.3, 20.0, 4
Values = np.ndarray[Any, np.dtype[np.float64]]


class Sums(NamedTuple):
    """Sums of a group's devices over their windows of each class, for keys of length d."""

    devices: Values
    """Number (classes,) of devices with at least `LEAST` windows of a class."""
    means: Values
    """Sums (classes, d) of the devices' means."""
    squares: Values
    """Sum (d, d) of the outer products of these means."""
    inverse: float
    """Sum of 1 / windows of each of these means."""
    scatter: Values
    """Sum (d, d) of the squared distances of windows from their mean, and its `freedom`."""
    freedom: float


def sums_of(keys: Values, y: Values, num_classes: int) -> Sums:
    """Return the sums of one device's keys (n, d) with classes y (n,)."""
    d = keys.shape[1]
    devices, means = np.zeros(num_classes), np.zeros((num_classes, d))
    squares, scatter, inverse, freedom = np.zeros((d, d)), np.zeros((d, d)), 0.0, 0.0
    for c in range(num_classes):
        own = keys[y == c]
        if len(own) >= LEAST:
            devices[c], means[c] = 1, own.mean(0)
            squares += np.outer(means[c], means[c])
            scatter += (own - means[c]).T @ (own - means[c])
            inverse, freedom = inverse + 1 / len(own), freedom + len(own) - 1
    return Sums(devices, means, squares, inverse, scatter, freedom)


class Prior:
    """The two-covariance model of a group."""

    def __init__(self, all_of: list[Sums]) -> None:
        s = Sums(*(sum(values) for values in zip(*all_of, strict=True)))
        d, count = s.scatter.shape[0], np.maximum(s.devices, 1)[:, None]
        mean, within = s.means / count, s.scatter / max(s.freedom, 1)
        within = (1 - RIDGE) * within + RIDGE * np.diag(np.diag(within))
        within += 1e-6 * np.trace(within) / d * np.eye(d)
        self.whitening = np.linalg.inv(np.linalg.cholesky(within)).T
        """(d, d): keys times it have the covariance 1 within classes."""
        apart = (mean - mean.mean(0)) @ self.whitening
        _, directions = np.linalg.eigh(apart.T @ apart)
        narrow = self.whitening @ directions[:, ::-1][:, :DIRECTIONS]
        between = (s.squares - (mean * count).T @ mean) / max(s.devices.sum() - len(mean), 1)
        between -= within * s.inverse / max(s.devices.sum(), 1)
        moved, rotation = np.linalg.eigh(narrow.T @ between @ narrow)
        self.directions = narrow @ rotation
        self.spread, self.mean = np.maximum(moved, 1e-3), mean @ self.directions
        self.is_seen = s.devices > 0

    def answers(self, keys: Values, y: Values, queries: Values) -> Values:
        """Return probabilities (n, classes) of `queries`, given a device's labelled keys."""
        u, drift = keys @ self.directions, DRIFT * self.spread
        sizes = np.array([(y == c).sum() for c in range(len(self.mean))])[:, None]
        own = np.array(
            [u[y == c].mean(0) if (y == c).any() else m for c, m in enumerate(self.mean)]
        )
        evidence = sizes / (1 + sizes * drift)
        precision = 1 / self.spread + evidence
        mean = (self.mean / self.spread + evidence * own) / precision
        variance = 1 + 1 / precision + drift
        far = (((queries @ self.directions)[:, None] - mean) ** 2 / variance).sum(2)
        logs = -(TAIL + u.shape[1]) / 2 * np.log1p(far / TAIL) - np.log(variance).sum(1) / 2
        return softmax(np.where(self.is_seen, logs, -1e4))


def softmax(logs: Values) -> Values:
    """Return probabilities (n, classes) in proportion to the exponentials."""
    powers = np.exp(logs - logs.max(1, keepdims=True))
    probabilities: Values = powers / powers.sum(1, keepdims=True)
    return probabilities


class Fleet:
    """A trained fleet of `benchmarks.newcomers`, with its newcomers and its groups' priors."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self.data, self.newcomers, self.finished = trained(name, seed, folder)
        self.seed = seed
        self.see(None)
        sums = defaultdict(list)
        start, memory = self.reception.algorithm.grouping.start, self.reception.state.memory
        self.groups = {d: start(memory, d) for d in self.data.devices}
        for device_id, group in self.groups.items():
            windows = self.data.devices[device_id]
            keys = self.keys(device_id, windows, group, windows.train_x)
            sums[group].append(sums_of(keys, windows.train_y, len(self.data.classes)))
        self.priors = {group: Prior(of) for group, of in sums.items()}

    def see(self, matrix: Values | None) -> None:
        """Let devices find neighbours by their keys, times a matrix (d, width) if there is one."""
        objective: Any = objective_for_fleet(self.data, SPEC, self.seed)
        self.keeping: Keeping = objective.graphs()["memorise"].__self__
        if matrix is not None:
            factors, usual = torch.from_numpy(matrix.astype(np.float32)), self.keeping.keys_of
            size, classes = self.keeping.memory_size, len(self.data.classes)
            changed: Any = self.keeping
            changed.keys_of = lambda made: usual(made) @ factors
            changed.no_memory = lambda: empty(size, factors.shape[1], classes)
        self.reception = reception_of(self.data, self.finished, objective)

    def place(self, device_id: str, windows: Windows) -> str:
        """Return the group of a newcomer."""
        return self.reception._place(device_id, self._executor(windows)).group

    def keys(self, device_id: str, windows: Windows, group: str, x: Any) -> Values:
        """Return the keys (n, d) of windows x by the group's model with the device's statistics."""
        verbs = self._verbs(windows)
        graphs = [getattr(verb, "graph", "") for verb in verbs]
        executor, reception = self._executor(windows), self.reception
        job = PlanExecution(
            reception.bundle,
            reception.graphs,
            executor._windows,
            reception._plan(device_id, group, verbs[: graphs.index("recalibrate") + 1]),
            reception._fetch,
            repeatable_secret,
            lambda: None,
        )
        job.receive(reception.run.models[group], reception._model(group))
        job.carry_out()
        tensors = {key: torch.as_tensor(np.asarray(value)) for key, value in job.tensors.items()}
        with torch.no_grad():
            keys = self.keeping.keys_of(self.keeping.whole.answer(tensors, torch.from_numpy(x)))
        return keys.double().numpy()

    def answers(self, device_id: str, windows: Windows, group: str) -> Values:
        """Return a device's answers (n, classes) for its test windows."""
        executor, model = self._executor(windows), self.reception._model(group)
        plan = self.reception._plan(device_id, group, self._verbs(windows))
        result = executor.execute(plan, model, {}, self.reception._fetch)
        return executor.predict(model, result.private, windows.test_x).astype(np.float64)

    def _executor(self, windows: Windows) -> Executor:
        return Executor(self.reception.bundle, self.reception.graphs, windows, repeatable_secret)

    def _verbs(self, windows: Windows) -> tuple[Verb, ...]:
        trains = windows.num_train >= self.reception.run.settings.min_batch
        return by_labels(self.reception.programs["closing"], windows.num_train, trains)


def measure(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the accuracy of every device by its number of labels a class and by the way."""
    fleet, rows = Fleet(name, seed, folder), []
    coming = [("all", d, w, fleet.groups[d]) for d, w in fleet.data.devices.items()]
    for labels in LABELS:
        for d, windows in fleet.newcomers.items():
            few = with_labels(windows, labels, d, seed)
            coming.append((str(labels), d, few, fleet.place(d, few)))
    for group, prior in fleet.priors.items():
        for way, matrix in zip(WAYS, (None, prior.whitening, prior.directions), strict=False):
            fleet.see(matrix)
            for count, d, windows, own in coming:
                if own != group:
                    continue
                answers = fleet.answers(d, windows, own)
                by_way = {way: answers}
                if matrix is None:
                    keys = fleet.keys(d, windows, own, windows.train_x)
                    queries = fleet.keys(d, windows, own, windows.test_x)
                    by_prior = prior.answers(keys, windows.train_y, queries)
                    by_way[WAYS[-1]] = np.log(by_prior + 1e-3) + np.log(answers + 1e-3)
                for name_of, values in by_way.items():
                    right = float((values.argmax(1) == windows.test_y).mean())
                    rows.append({"labels": count, "device": d, "way": name_of, "accuracy": right})
    return rows


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "## What a fleet could tell about neighbours",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.neighbours`; numbers in "
        "`results/neighbours.json`. Devices and protocol are those of the newcomers above; `all`: "
        "the devices that trained, with all their labels. Mean accuracy over devices and seeds, in "
        "brackets the worst tenth, in %. `own units`: what devices do. `group's covariance` and "
        f"`{DIRECTIONS} directions`: keys are first seen through the covariance within classes of "
        "the whole group, or through its discriminant directions. `prototypes`: the answers times "
        "those of class means with the group's prior. The three last need sums by class from "
        "every device.",
        "",
        f"| data | labels a class | {' | '.join(WAYS)} |",
        "|---" * (2 + len(WAYS)) + "|",
    ]
    for name in DATA:
        of_data = [
            row for run, rows in results["runs"].items() if run.startswith(name) for row in rows
        ]
        for count in ("all", *map(str, LABELS)):
            cells = [cell([row for row in of_data if row["way"] == way], count) for way in WAYS]
            lines.append(f"| {name} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--folder", type=Path, default=Path("runs/newcomers"))
    options = reader.parse_args()
    results = json.loads(OUT.read_text()) if OUT.exists() else {"runs": {}}
    results["machine"] = describe_machine()
    with one_thread():
        for name in DATA:
            for seed in range(SEEDS):
                if f"{name}-{seed}" not in results["runs"]:
                    results["runs"][f"{name}-{seed}"] = measure(name, seed, options.folder)
                    keep(results, OUT, OUT, "neighbours", text(results))
    print(text(results))


if __name__ == "__main__":
    main()
