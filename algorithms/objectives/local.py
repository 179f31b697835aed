"""Local: every device trains alone and nothing leaves it, the lower bound that federated methods
are measured by.

B. Liu, Y. Guo, X. Chen et al. DistFL. IMWUT 2021, section 5.1.4 ('Local').
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import Sgd
from algorithms.objectives.supervised import Supervised


class Local(Supervised):
    """Local SGD; every parameter and every statistic is private."""

    name: ClassVar[str] = "local"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, section 5.1.4 (Local)"
    sgd_graphs: ClassVar[Mapping[str, Sgd]] = {"step": Sgd()}
    private = ("",)
