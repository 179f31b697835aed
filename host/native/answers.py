"""What many models answer to the same inputs, as many at a time as torch may use threads."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from algorithms.models.reading.network import Network
from host.native.trainer import Trainer
from wire.arrays import names
from wire.arrays.tensors import Array


def answer(network: Network, models: Sequence[Mapping[str, Array]], inputs: Array) -> Array:
    """Class probabilities (N, z, classes) float32 of N models, tensors by ``shared/NAME`` and
    ``statistic/NAME``, for inputs (z, channels, time) float32.

    Raises:
        CannotCompile: the native engine cannot be built here.
    """
    trainer = Trainer(network)
    keys = [
        names.statistic(name) if names.is_running_statistic(name) else names.shared(name)
        for name in trainer.names
    ]
    answers = np.empty((len(models), len(inputs), network.classes), np.float32)
    inputs = np.ascontiguousarray(inputs, np.float32)

    def ask(at: int) -> None:
        answers[at] = trainer.predict(
            np.concatenate([models[at][key].ravel() for key in keys], dtype=np.float32), inputs
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(ask, range(len(models))))
    return answers
