"""FedLab's standalone simulation: a `SerialClientTrainer` and a `SyncServerHandler` in a
`StandalonePipeline`.

Its documentation's way for one machine: clients one after another in one process; both cores are
used by torch's threads only. It exchanges the parameters and leaves BatchNorm's running statistics
where they are.
"""

from importlib.metadata import version

import torch

from benchmarks.peers.workload import Fleet, durations, make_model, read_job, report, train

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # FedLab imports torchvision for its data sets. PyPI's torchvision is made for CUDA and does not
    # load its operators beside a CPU torch; two names it needs while it is imported are declared
    # here. Nothing in this run calls them.
    names = torch.library.Library("torchvision", "DEF")
    names.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    names.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import time

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline


class Trainer(SGDSerialClientTrainer):
    """Local training replaced the way FedLab's tutorial does: its own has no momentum."""

    def local_process(self, payload: list[torch.Tensor], id_list: list[int]) -> None:
        """Train the clients of this round, one after another."""
        for number in id_list:
            self.set_model(payload[0])
            train(self.model, *self.dataset[number])
            self.cache.append([self.model_parameters])


class Pipeline(StandalonePipeline):
    """`evaluate` is called after every round: it notes the time."""

    def main(self) -> None:
        """All rounds."""
        self.stamps = [time.perf_counter()]
        super().main()

    def evaluate(self) -> None:
        """No evaluation."""
        self.stamps.append(time.perf_counter())


def main() -> None:
    """All clients in every round; equal numbers of windows, so FedLab's unweighted mean is the
    weighted one."""
    job = read_job()
    trainer = Trainer(make_model(), job.devices)
    trainer.setup_dataset(Fleet(job.data))
    handler = SyncServerHandler(make_model(), job.rounds, sample_ratio=1.0)
    pipeline = Pipeline(handler, trainer)
    pipeline.main()
    report(
        durations(pipeline.stamps),
        handler.model,
        job,
        f"fedlab {version('fedlab')}, torch {torch.__version__}",
    )


if __name__ == "__main__":
    main()
