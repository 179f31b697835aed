"""Program of every NVFlare client: its Client API, as in the PyTorch examples, one process per
client that stays for all rounds."""

import sys
from pathlib import Path

import nvflare.client as flare
import torch

from benchmarks.peers.workload import BATCH, EPOCHS, Fleet, make_model, train


def main() -> None:
    """Receive, train, send, until the run is over."""
    torch.set_num_threads(1)
    flare.init()
    x, y = Fleet(Path(sys.argv[1]))[int(flare.get_site_name().split("-")[1]) - 1]
    model = make_model()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        train(model, x, y)
        flare.send(
            flare.FLModel(
                params=model.state_dict(),
                meta={"NUM_STEPS_CURRENT_ROUND": EPOCHS * len(y) // BATCH},
            )
        )


if __name__ == "__main__":
    main()
