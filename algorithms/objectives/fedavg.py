"""FedAvg: every device minimises the cross-entropy of the shared model by SGD.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of
Deep Networks from Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import PlainSgd
from algorithms.objectives.supervised import Supervised


class FedAvg(Supervised):
    """Local SGD with momentum."""

    name: ClassVar[str] = "fedavg"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    in_sums = "works"
    wrapped_by: ClassVar[tuple[str, ...]] = ("prbm", "mr")
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}
