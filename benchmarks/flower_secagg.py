"""Costs of Flower's SecAgg+, measured without a network: ``PYTHON -m benchmarks.flower_secagg``.

PYTHON is the interpreter of an environment with flwr 1.42.0 and numpy (that of
``benchmarks/peers/requirements/flower.txt``), never the repository's own. The server is Flower's
`SecAggPlusWorkflow` and each client its `secaggplus_mod`; a grid in the same process passes the
bytes of their messages. `benchmarks.secret_costs` calls it, and reads the JSON that it prints.
"""

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

COLLECT = 2
"""Exchange, counted from 0, in which clients send masked numbers."""
EXAMPLES, CLIP = 100, 0.25
SERVER = 1
"""Id of the server, and of its run; clients have the following numbers."""


@dataclass
class DirectGrid:
    """Clients in the server's process: messages are passed as bytes, and all work is timed."""

    numbers: dict[int, Any]
    dropouts: set[int]
    contexts: dict[int, Context] = field(default_factory=dict)
    exchanges: int = 0
    up: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    down: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the clients' replies; those that drop out send no masked numbers."""
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            payload = message_to_proto(message).SerializeToString()
            self.down[node] += len(payload)
            if self.exchanges >= COLLECT and node in self.dropouts:
                continue
            began_s = time.process_time()
            reply = self._answer(node, payload)
            self.seconds[node] += time.process_time() - began_s
            self.up[node] += len(reply)
            replies.append(message_from_proto(ProtoMessage.FromString(reply)))
        self.exchanges += 1
        return replies

    def _answer(self, node: int, payload: bytes) -> bytes:
        def fit(message: Message, _context: Context) -> Message:
            result = FitRes(
                Status(Code.OK, ""), ndarrays_to_parameters([self.numbers[node]]), EXAMPLES, {}
            )
            return Message(compat.fitres_to_recorddict(result, False), reply_to=message)

        message = message_from_proto(ProtoMessage.FromString(payload))
        reply = secaggplus_mod(message, self.contexts[node], fit)
        sent: bytes = message_to_proto(reply).SerializeToString()
        return sent


def measure(parameters: int, devices: int, num_shares: int, threshold: int) -> dict[str, Any]:
    """Return the costs of one round in which a tenth of the clients drops out."""
    draws = np.random.default_rng(1)
    nodes = range(SERVER + 1, SERVER + 1 + devices)
    numbers = {node: draws.uniform(-CLIP, CLIP, parameters).astype(np.float32) for node in nodes}
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = SERVER
    grid = DirectGrid(numbers, set(list(nodes)[: devices // 10]))
    manager = SimpleClientManager()
    for node in nodes:
        grid.contexts[node] = Context(1, node, {}, RecordDict(), {})
        manager.register(GridClientProxy(node, grid, 1))
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}),
        strategy=FedAvg(min_fit_clients=devices, min_available_clients=devices),
        client_manager=manager,
    )
    context.state.config_records["config"] = ConfigRecord({"current_round": 1})
    # The server sends no model: devices get it before the secret sum in both systems.
    none = ndarrays_to_parameters([])
    context.state.array_records["parameters"] = compat.parameters_to_arrayrecord(none, True)
    workflow = SecAggPlusWorkflow(
        num_shares, threshold, clipping_range=CLIP, max_weight=float(EXAMPLES)
    )
    began_s = time.process_time()
    workflow(grid, context)
    server_s = time.process_time() - began_s - sum(grid.seconds.values())
    answered = [node for node in nodes if node not in grid.dropouts]
    record = context.state.array_records["parameters"]
    (mean,) = parameters_to_ndarrays(compat.arrayrecord_to_parameters(record, True))
    expected = sum(numbers[node].astype(np.float64) for node in answered) / len(answered)
    error = float(np.abs(mean - expected).max())
    assert error < 4 * CLIP / workflow.quantization_range + 1e-7, f"largest error {error}"

    def per_device(values: dict[int, Any]) -> float:
        return float(sum(values[node] for node in answered)) / len(answered)

    return {
        "exchanges": grid.exchanges,
        "device_up": per_device(grid.up),
        "device_down": per_device(grid.down),
        "device_s": per_device(grid.seconds),
        "server_s": server_s,
        "largest_error": error,
        "version": version("flwr"),
    }


def main() -> None:
    """Measure one fleet, and print its costs as JSON."""
    reader = argparse.ArgumentParser(description=__doc__)
    for name in ("parameters", "devices", "num_shares", "threshold"):
        reader.add_argument(name, type=int)
    options = reader.parse_args(namespace=SimpleNamespace())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(json.dumps(measure(**vars(options))))


if __name__ == "__main__":
    main()
