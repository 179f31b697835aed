"""Local: every device trains alone, the lower bound for federated methods.

Nothing leaves the device.

B. Liu, Y. Guo, X. Chen et al. DistFL. IMWUT 2021, section 5.1.4 ('Local').
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import InSums, PlainSgd
from algorithms.objectives.supervised import Supervised


class Local(Supervised):
    """Local SGD with private parameters and statistics only."""

    name: ClassVar[str] = "local"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, section 5.1.4 (Local)"
    in_sums: ClassVar[InSums] = "cannot"
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}
    private = ("",)
