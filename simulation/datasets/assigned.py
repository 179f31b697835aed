"""Devices whose examples lie in a pool.

A device is two lists of indices into the pool. Its windows are copied only while they are in use.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edge_client.core.ports import Windows
from simulation.datasets.pool import Pool
from wire.arrays.tensors import Array

PARTS = ("train_x", "train_y", "test_x", "test_y")


class PoolWindows(Windows):
    """Windows at indices of a pool, copied when they are first read."""

    def __init__(self, pool: Pool, train: Array, test: Array) -> None:
        self.__dict__ |= {
            "_pool": pool,
            "_train": train,
            "_test": test,
            "unlabelled_x": pool.train_x[:0],
        }

    def __getattr__(self, name: str) -> Array:
        if name not in PARTS:
            raise AttributeError(name)
        places = self._train if name.startswith("train") else self._test
        windows: Array = getattr(self._pool, name)[places]
        self.__dict__[name] = windows
        return windows

    _pool: Pool
    _train: Array
    _test: Array

    @property
    def num_train(self) -> int:
        return len(self._train)

    @property
    def num_test(self) -> int:
        return len(self._test)


class Assigned(Mapping[str, Windows]):
    """A fleet as indices into a pool, (n,) int64 for each device's training and test part.

    The memory of the fleet is that of the indices.
    """

    def __init__(
        self, pool: Pool, names: Sequence[str], train: Sequence[Array], test: Sequence[Array]
    ) -> None:
        self._pool, self._train, self._test = pool, train, test
        self._index = {name: i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> Windows:
        i = self._index[name]
        return PoolWindows(self._pool, self._train[i], self._test[i])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def squares(self) -> tuple[Array, int]:
        """Return the sum of squares per channel over all training examples, and their number.

        The sum is (channels,) float64, the number that of a channel's values.
        """
        times = np.bincount(np.concatenate(self._train), minlength=len(self._pool.train_y)).astype(
            np.float64
        )
        total = np.zeros(self._pool.train_x.shape[1])
        for at in range(0, len(times), 4096):  # in pieces: squares are float64
            x = np.square(self._pool.train_x[at : at + 4096], dtype=np.float64)
            total += times[at : at + 4096] @ x.reshape(*x.shape[:2], -1).sum(2)
        return total, int(times.sum()) * (self._pool.train_x[0].size // len(total))
