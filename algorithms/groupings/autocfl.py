"""AutoCFL: make models of small and large devices comparable, then cluster once by weighted voting.

B. Gong, T. Xing, Z. Liu, W. Xi, X. Chen. Adaptive Client Clustering for Efficient Federated
Learning over Non-IID and Imbalanced Data. IEEE Transactions on Big Data, 2022. Section 4.2 (local
training adjustment, Eq. 7 to 9), section 4.3 (clustering, Eq. 6 and 10 to 13, Algorithm 1).

Legend: E_m local epochs and D_m examples of device m, CL_m its cumulative loss, s* the device with
most examples, M[m, n] the distance between the last layers' weights of m and n.

Until the devices are clustered there is one global model, group ``0``, as in Fig. 6. Where the
paper leaves something open:

- Devices are clustered in the first round, from round `earliest` on, in which the variance of the
  cumulative losses is larger than in the round before, by the models of that round. Round LATEST is
  the last possible one. The paper looks at 'the first five rounds' (section 5.1) and needs 3 to 6,
  mostly 5 (Table 3). The variance of a sum already grows from the second round on if losses differ
  lastingly between devices; models do not differ by group that early.
- E_m is added to the campaign's number of local epochs and rounded for the device. After the
  clustering every device trains the campaign's number again, because the adjustment only serves to
  make the distances comparable.
- A device that misses a round counts with its last loss for that round. A device that joins late
  counts with its first loss for the rounds before.
- The row of Algorithm 1 holds M[m, m] = 0. The gap between 0 and the nearest other device does not
  separate clusters, or every device of an IID fleet would be a cluster by itself (Table 3 has one
  cluster). Equal scores go to the representative with more examples.
- Unweighted voting (Table 5) gives every device the same weight in Eq. 12.
- If a representative belongs to another representative's cluster, its devices go there with it.
- Devices that join after the clustering, or missed it, are placed as in `base`, by the weights of
  the last layer.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Matrix, Probe
from algorithms.groupings.base import Defaults, keep_names, place, remember_first, settle
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError

Vote = Literal["weighted", "unweighted"]
LATEST = 10
"""Number of rounds after which devices are clustered in any case.

The paper lets the adjustment run for at most this many (section 5.3).
"""
MOST_EPOCHS = 10_000
"""Maximum number of epochs that a plan may request."""


class AutoCFL(Defaults):
    """Adaptive client clustering: one global model until the devices are clustered."""

    name: ClassVar[str] = "autocfl"
    citation: ClassVar[str] = "Gong et al., IEEE Transactions on Big Data, 2022"
    in_sums = "cannot"
    vote: Vote = option(
        "weighted", "devices vote by their examples or alike", choices=("weighted", "unweighted")
    )
    alpha: float = option(0.5, "share of the epochs that a device lacks", above=0)
    adjust: bool = option(True, "small devices train for more epochs before the clustering")
    earliest: int = option(5, "first round in which devices may be clustered", low=1)

    def check(self, model: Tensors, probe: Probe | None) -> None:
        last_layer(model)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        layer = last_layer(models[0].tensors)
        arrays = remember_first(memory.arrays, models, lambda model: model.tensors[layer])
        ids = tuple(model.device_id for model in models)
        if "clustered" in memory.info:
            return Grouped(
                GroupingMemory(settle(memory.membership, models, arrays), arrays, memory.info),
                device_ids=ids,
            )
        info = cumulate(memory.info, models)
        variances = info["variances"]
        notes: dict[str, Any] = {"variances": [round(v, 6) for v in variances]}
        together = memory.membership | dict.fromkeys(ids, "0")
        rising = len(variances) >= max(2, self.earliest) and variances[-1] > variances[-2]
        due = rising or len(variances) >= max(LATEST, self.earliest)
        if len(models) < 3 or not due:  # of two devices, neither is nearer than another
            info["extra"], extra = self._adjusted(memory.info.get("extra", {}), info)
            return Grouped(
                GroupingMemory(together, arrays, info),
                device_ids=ids,
                notes=notes,
                extra_epochs=extra,
            )
        distances = distance_matrix([model.tensors[layer] for model in models])
        labels = vote_for_clusters(
            distances, np.array([model.num_examples for model in models]), self.vote
        )
        membership = keep_names(ids, labels, together)
        away = [device_id for device_id in together if device_id not in membership]
        membership |= place(away, membership, arrays)
        notes["clustered"] = len(variances)
        return Grouped(
            GroupingMemory(membership, arrays, {"clustered": len(variances)}),
            {"last layer": distances},
            ids,
            notes,
        )

    def _adjusted(
        self, before: dict[str, float], info: dict[str, Any]
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Return the epochs added in the next round (E_m, Eq. 8 and 9), exact and rounded.

        The campaign's own number of epochs is not included. The rounded numbers are sent to the
        devices; zeros are left out.
        """
        losses, cumulative, counts = info["losses"], info["cumulative"], info["num_examples"]
        if not self.adjust or not counts:
            return {}, {}
        best = max(sorted(counts), key=counts.__getitem__)
        following = {}
        for device_id in sorted(counts):
            following[device_id] = before.get(device_id, 0.0)
            if cumulative[device_id] > cumulative[best]:
                rho = min(1.0, losses[device_id] / losses[best]) if losses[best] > 0 else 1.0
                step = (self.alpha * counts[best] / counts[device_id]) ** rho
                following[device_id] = min(following[device_id] + step, float(MOST_EPOCHS))
        whole_epochs = {device_id: round(extra) for device_id, extra in following.items()}
        return following, {device_id: extra for device_id, extra in whole_epochs.items() if extra}


def last_layer(tensors: Tensors) -> str:
    """Return the key of the last layer's weights among the shared tensors.

    Raises:
        ConfigError: there are none, for instance because the head is private.
    """
    shared = list(names.of_role(tensors, names.SHARED))
    layers = [key for key in shared if key.endswith("weight") and tensors[key].ndim == 2]
    if not layers:
        got = ", ".join(shared) or "none"
        raise ConfigError(
            "autocfl compares the weights of the last linear layer, and none is shared; shared "
            f"tensors: {got}; choose another grouping or objective"
        )
    return layers[-1]


def cumulate(info: dict[str, Any], models: Sequence[LocalModel]) -> dict[str, Any]:
    """Return `info` with the losses of one more round.

    It holds the last loss and CL_m (Eq. 7) of every device so far, and the variance of CL_m after
    each round.

    Raises:
        ConfigError: no device has ever reported a loss.
    """
    losses, counts = dict(info.get("losses", {})), dict(info.get("num_examples", {}))
    cumulative, variances = dict(info.get("cumulative", {})), list(info.get("variances", []))
    for model in models:
        if np.isfinite(model.loss):  # a model that diverged has no finite loss
            losses[model.device_id], counts[model.device_id] = (
                float(model.loss),
                max(1, model.num_examples),
            )
            cumulative.setdefault(model.device_id, model.loss * len(variances))
    if not losses:
        raise ConfigError(
            "autocfl needs training losses, and no device reported one that is finite"
        )
    cumulative = {
        device_id: cumulative[device_id] + losses[device_id] for device_id in sorted(losses)
    }
    variances.append(float(np.var(list(cumulative.values()))))
    return {
        "losses": losses,
        "num_examples": counts,
        "cumulative": cumulative,
        "variances": variances,
    }


def distance_matrix(weights: Sequence[Array]) -> Matrix:
    """Return M (Eq. 6), (N, N): Euclidean distances, divided by the number of weights."""
    rows = np.stack([w.ravel().astype(np.float64) for w in weights])
    return np.asarray(
        scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(rows)) / rows.shape[1]
    )


def vote_for_clusters(distances: Matrix, num_examples: Array, vote: Vote = "weighted") -> Array:
    """Return the representative (N,) of each device by Algorithm 1, from M (N, N) and |D| (N,)."""
    size = len(distances)
    order = np.lexsort((np.arange(size), -num_examples))  # most examples first
    rank = np.argsort(order)
    scores = np.zeros((size, size))
    for m in range(size):
        near = _near_part(distances[m], m)
        representative = near[rank[near].argmin()]  # Eq. 11
        weights = num_examples[near] if vote == "weighted" else np.ones(len(near))
        scores[near, representative] += weights / weights.sum()  # Eq. 12
    chosen = order[scores[:, order].argmax(1)]  # Eq. 13
    while (chosen != chosen[chosen]).any():
        chosen = chosen[chosen]
    return np.asarray(chosen)


def _near_part(row: Matrix, place: int) -> Array:
    """Return P_1: the device, and the other devices before the largest gap in its row.

    Without a gap, this is every device.
    """
    others = np.argsort(row, kind="stable")
    others = others[others != place]
    gaps = np.diff(row[others])
    cut = int(gaps.argmax()) + 1 if len(gaps) and gaps.max() > 0 else len(others)
    return np.concatenate([[place], others[:cut]])
