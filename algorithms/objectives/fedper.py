"""FedPer: the head stays on the device; body and head are trained together.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. Federated Learning with Personalization
Layers. arXiv:1912.00818, 2019, Algorithms 1 and 2.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import PlainSgd
from algorithms.objectives.supervised import Supervised


class FedPer(Supervised):
    """Local SGD with a private head."""

    name: ClassVar[str] = "fedper"
    citation: ClassVar[str] = "Arivazhagan et al., arXiv:1912.00818, Algorithms 1 and 2"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("mr",)
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}
    private = ("head.",)
