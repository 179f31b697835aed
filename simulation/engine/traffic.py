"""The bytes that a run would move: its messages are weighed, not sent.

Models are weighed exactly; a model counts unless the device holds it from the round before. An
update weighs the same for all digits of its measurements, which differ between processors, so that
a resumed run counts as one without interruption.
"""

from typing import Any

import numpy as np
from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from simulation.engine.workers.device_host import DeviceResult, Models
from wire.arrays.tensors import encode_tensors
from wire.bundle import Layout
from wire.codec import digest, encode, encode_update
from wire.messages import Acknowledge, Choose, Metrics, Plan, Update

NO_DIGEST = "0" * 64

TRAIN_S, LOSS = 0.123456, 12.345678901234567
"""Seconds of training in every weighed update, and the sum of its losses.

With constants, equal runs send equal bytes.
"""


class MessageScale:
    """A scale for the messages of one run; `models_by_device` has their digests."""

    def __init__(self, settings: RunSettings, bundle_bytes: int) -> None:
        self._settings, self._bundle_bytes = settings, bundle_bytes
        self._updates: dict[tuple[Layout, int], int] = {}
        self._blobs: dict[str, tuple[str, int]] = {}
        self._plans: dict[int, tuple[Any, int]] = {}
        self.models_by_device: dict[str, list[str]] = {}

    def weigh(self, models: Models) -> None:
        """Weigh the models of a new round."""
        payloads = {key: encode_tensors(tensors) for key, tensors in models.items()}
        self._plans.clear()
        self._blobs = {key: (digest(payload), len(payload)) for key, payload in payloads.items()}

    def down(self, plan: Plan) -> int:
        """Return the bytes to the device for this plan.

        They include the plan, models that the device lacks and the acknowledgement; before its
        first plan the bundle too.
        """
        needed = dict(
            self._blobs[key]
            for key in {
                plan.model,
                *(m for v in plan.verbs if isinstance(v, Choose) for m in v.models),
            }
        )
        model_names = self.models_by_device.get(plan.device_id)
        self.models_by_device[plan.device_id] = sorted(needed)
        lacking = sum(size for name, size in needed.items() if name not in (model_names or ()))
        if id(plan.verbs) not in self._plans:  # one object for all devices with the same verbs
            sent = replace(plan, bundle=NO_DIGEST, model=NO_DIGEST)
            self._plans[id(plan.verbs)] = (plan.verbs, len(encode(sent)))
        return (
            self._plans[id(plan.verbs)][1]
            + len(encode(Acknowledge(plan.device_id, NO_DIGEST)))
            + lacking
            + (0 if model_names is not None else self._bundle_bytes)
        )

    def up(self, result: DeviceResult) -> int:
        """Return the bytes of an update."""
        message = Update(
            self._settings.run_id,
            1,
            1,
            0,
            result.device_id,
            NO_DIGEST,
            result.num_train,
            result.num_steps,
            _measured(result.evaluated),
            _measured(result.trained),
            self._bundle_bytes,
            TRAIN_S,
            node=result.node,
        )
        key = result.layout, len(encode(message))
        if key not in self._updates:
            tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in result.layout}
            self._updates[key] = len(encode_update(message, tensors))
        return self._updates[key]


def _measured(metrics: Metrics) -> Metrics:
    """Return metrics over the same number of windows, with the usual number of digits."""
    return (
        Metrics(metrics.num_examples, LOSS, metrics.num_examples // 2)
        if metrics.num_examples
        else metrics
    )
