"""Run with Flower's own Python: what its server takes to average the models of an arena, which is a
file of float32 rows. Prints JSON.

Both ways in which Flower receives models: records of its message API, and the older parameters of
`FitRes`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np


def main(path: str, shapes: list[list[int]], counts: list[int], turns: int) -> dict[str, Any]:
    """Median milliseconds of each way."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.server.strategy.aggregate import aggregate_inplace
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    ends = list(accumulate(map(prod, shapes)))
    arena = np.fromfile(path, np.float32).reshape(len(counts), ends[-1])
    models = [
        [row[end - prod(s) : end].reshape(s) for s, end in zip(shapes, ends, strict=True)]
        for row in arena
    ]
    records = [
        RecordDict({"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": count})})
        for model, count in zip(models, counts, strict=True)
    ]
    replies = [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(m), count, {}))
        for m, count in zip(models, counts, strict=True)
    ]
    ways: dict[str, Callable[[], Any]] = {
        "records": lambda: aggregate_arrayrecords(records, "num-examples"),
        "parameters": lambda: aggregate_inplace(replies),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            times[name].append(1000 * (time.perf_counter() - began))
    return {"version": version("flwr")} | {
        name: round(statistics.median(ms), 3) for name, ms in times.items()
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(json.loads, sys.argv[2:5]))))
