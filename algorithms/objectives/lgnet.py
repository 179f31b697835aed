"""LG-Net, also known as FedAvg-FT: federate, then fine-tune the model on every device.

B. Liu, Y. Guo, X. Chen et al. DistFL. IMWUT 2021, section 5.1.4: 'first learns a global model by
traditional FL and then fine-tunes the model with the data in each client'. The paper it refers to
(P. P. Liang et al., Think Locally, Act Globally, arXiv:2001.01523) keeps the lower layers on the
devices; this code follows DistFL's wording.
"""

from typing import ClassVar

from algorithms.core.contract import ObjectiveMemory, Work
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.fedavg import FedAvg
from algorithms.spec import option
from wire.messages import MOST_EPOCHS, Verb


class FineTuned(DefaultCoordinator):
    """Server's half: devices fine-tune after the last round, with the graph `tuning`."""

    tuning: ClassVar[str] = "step"

    fine_tune_epochs: int = option(10, "passes after the last round", low=0, high=MOST_EPOCHS)

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        tune = (
            (work.train(self.tuning, epochs=self.fine_tune_epochs, report=False),)
            if self.fine_tune_epochs
            else ()
        )
        return (*tune, *super().closing(context, work))


class LgNet(FedAvg):
    """FedAvg on the device, with fine-tuning after the last round."""

    name: ClassVar[str] = "lg-net"
    citation: ClassVar[str] = "Liu et al., IMWUT 2021, section 5.1.4 (LG-Net)"
    in_sums = "works"
    wrapped_by: ClassVar[tuple[str, ...]] = ()
    server: ClassVar[type[DefaultCoordinator]] = FineTuned
