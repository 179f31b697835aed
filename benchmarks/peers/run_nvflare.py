"""NVFlare's simulator: `FedAvgRecipe` in a `SimEnv`, the Client API in `nvflare_client.py`.

As many simulator threads as clients, which is the recipe's own default: every client then keeps its
process for the whole run. With fewer it starts a process, and imports torch, for every single
update.
"""

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from benchmarks.peers.nvflare_log import moments
from benchmarks.peers.workload import durations, make_model, read_job, report


def main() -> None:
    """The weights start from a file and end in one; the times of the rounds are those in the
    server's log."""
    job = read_job()
    model = make_model()
    root = Path(tempfile.mkdtemp(prefix="shoal-nvflare-"))
    try:
        torch.save(model.state_dict(), root / "initial.pt")
        recipe = FedAvgRecipe(
            name="peers",
            model=model,
            initial_ckpt=str(root / "initial.pt"),
            min_clients=job.devices,
            num_rounds=job.rounds,
            train_script=str(Path(__file__).with_name("nvflare_client.py")),
            train_args=str(job.data.absolute()),
            server_expected_format=ExchangeFormat.PYTORCH,
        )
        recipe.execute(SimEnv(num_clients=job.devices, workspace_root=str(root)))
        log = next(root.rglob("server/**/log.txt"))
        saved = torch.load(next(root.rglob("FL_global_model.pt")), weights_only=True)
        model.load_state_dict(saved["model"])
        report(
            durations(moments(log.read_text().splitlines())),
            model,
            job,
            f"nvflare {version('nvflare')}, torch {torch.__version__}",
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
