"""SCAFFOLD: control variates correct the drift of local steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh. SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning. ICML 2020, Algorithm 1. Legend: c the server's control
variate (``received/control.NAME``), c_i the device's (``private/control.NAME``).

Option II sets c_i to (x - y_i) / (K * lr) - c + c_i, which for plain SGD is the mean of the raw
gradients of the round's K steps. The device stores that mean as c_i, so that Option II holds with
momentum too, and reports the change of c_i. The server moves c by the mean of these changes over
all devices (Eq. 5).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from algorithms.core.contract import GraphFunction, LocalModel, ObjectiveMemory, TorchTensors
from algorithms.core.keys import NEWCOMER
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import LR, Supervised
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Apply

_STEPS, _SUM = names.slot("steps"), names.slot("sum.")
_OWN, _SERVERS = names.private("control."), names.received("control.")


class ScaffoldServer(DefaultCoordinator):
    """Server's half: stores c for each group, the mean of its members' c_i."""

    own_rule: ClassVar[bool] = True
    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    after = (Apply("conclude"),)

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        controls = {k: v for k, v in initial.items() if k.startswith(_SERVERS)}
        return ObjectiveMemory({f"{NEWCOMER}/{names.name_of(k)}": v for k, v in controls.items()})

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        arrays = dict(context.arrays)
        controls = [k.removeprefix(f"{NEWCOMER}/") for k in arrays if k.startswith(f"{NEWCOMER}/")]
        for group in sorted({membership[m.device_id] for m in models}):
            members = [m for m in models if membership[m.device_id] == group]
            share = len(members) / sum(g == group for g in membership.values())
            for name in controls:
                before = np.mean([_control(context, m.start, name) for m in members], axis=0)
                reported = names.response("conclude", f"change.{name.removeprefix('control.')}")
                change = np.mean([m.responses[reported] for m in members], axis=0)
                arrays[f"{group}/{name}"] = (before + share * change).astype(np.float32)
        return ObjectiveMemory(arrays, context.info)

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        controls = [
            k.removeprefix(f"{NEWCOMER}/") for k in context.arrays if k.startswith(f"{NEWCOMER}/")
        ]
        return {names.received(name): _control(context, key, name) for name in controls}


class Scaffold(Supervised):
    """Training with steps w <- w - lr * (gradient - c_i + c)."""

    name: ClassVar[str] = "scaffold"
    citation: ClassVar[str] = "Karimireddy et al., ICML 2020, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("prbm", "mr")
    server: ClassVar[type[DefaultCoordinator]] = ScaffoldServer
    own_rule: ClassVar[bool] = True
    hyper: Mapping[str, Any] = {**Supervised.hyper, "lr": 10 * LR, "momentum": 0.0}

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        zeros = {n: torch.zeros_like(v) for n, v in names.part(tensors, names.SHARED).items()}
        controls = {
            begin + n: zero.clone() for begin in (_OWN, _SERVERS, _SUM) for n, zero in zeros.items()
        }
        return tensors | controls | {_STEPS: torch.zeros(())}

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "conclude": self.conclude}

    def correct(
        self, gradients: TorchTensors, tensors: TorchTensors, hyper: TorchTensors
    ) -> tuple[TorchTensors, TorchTensors]:
        """Return the corrected direction, and the sum of the raw gradients for `conclude`."""
        directions: TorchTensors = {}
        sums: TorchTensors = {_STEPS: tensors[_STEPS] + 1}
        for key, gradient in gradients.items():
            role, name = names.role_of(key), names.name_of(key)
            if role != names.SHARED:  # tensors that stay on the device have no drift to correct
                directions[key] = gradient
                continue
            directions[key] = gradient - tensors[_OWN + name] + tensors[_SERVERS + name]
            sums[_SUM + name] = tensors[_SUM + name] + gradient
        return directions, sums

    def conclude(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Set c_i to the mean gradient of the round, and report its change."""
        outputs: TorchTensors = {}
        for key, total in tensors.items():
            if key.startswith(_SUM):
                name = key.removeprefix(_SUM)
                mean = total / tensors[_STEPS].clamp(min=1.0)
                outputs[names.following(_OWN + name)] = mean
                outputs[names.metric(f"change.{name}")] = mean - tensors[_OWN + name]
        return outputs


def _control(context: ObjectiveMemory, key: str, name: str) -> Array:
    return context.arrays.get(f"{key}/{name}", context.arrays[f"{NEWCOMER}/{name}"])
