"""Plain loop over the devices with a mean of their `state_dict`s: the baseline for the overhead of
a framework."""

import torch

from benchmarks.peers.workload import Fleet, make_model, read_job, report, timed, train


def main() -> None:
    """Run the rounds; the threads are those within torch's operations."""
    job = read_job()
    fleet, model = Fleet(job.data), make_model()
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def one_round() -> None:
        total = {
            name: torch.zeros_like(value, dtype=torch.float32) for name, value in weights.items()
        }
        for number in range(job.devices):
            x, y = fleet[number]
            model.load_state_dict(weights)
            train(model, x, y)
            for name, value in model.state_dict().items():
                total[name] += value * (len(y) / (job.devices * len(y)))
        weights.update({name: value.to(weights[name].dtype) for name, value in total.items()})

    rounds_s = timed(job.rounds, one_round)
    model.load_state_dict(weights)
    report(rounds_s, model, job, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
