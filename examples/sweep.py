"""Sweep over learning rate, epochs and algorithm with Optuna.

Install it with ``pip install 'shoal[simulation,sweep]'``.

An interrupted sweep resumes: its trials are in a file. Trials are judged on windows that
`shoal.validation` sets aside from the training part. The test part is used once, by the best trial.
"""

from pathlib import Path

import optuna

import shoal


class Pruner:
    """Callback that reports each round to Optuna, and stops a trial that Optuna gives up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial
        self.pruned = False

    def on_round(self, progress: shoal.Progress) -> shoal.Stop | None:
        """Report the mean accuracy of the models that were tested in this round."""
        metrics = progress.metrics
        if metrics.phase != "training" or metrics.accuracy_mean is None:
            return None
        self.trial.report(metrics.accuracy_mean, metrics.evaluated)
        self.pruned = self.trial.should_prune()
        return shoal.STOP if self.pruned else None


def sweep(
    data: shoal.FleetData, trials: int, rounds: int, folder: Path = Path("runs/sweep")
) -> optuna.Study:
    """Try settings on the fleet without its test part, until `trials` of the folder are over."""
    tuned_on = shoal.validation(data)

    def trial_of(trial: optuna.Trial) -> float:
        pruner = Pruner(trial)
        result = shoal.simulate(
            tuned_on,
            algorithm=trial.suggest_categorical("algorithm", ["fedavg", "distfl"]),
            lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True),
            local_epochs=trial.suggest_int("local_epochs", 1, 3),
            rounds=rounds,
            callbacks=[pruner],
        )
        if pruner.pruned:
            raise optuna.TrialPruned
        assert result.accuracy.mean is not None
        return result.accuracy.mean

    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=f"{data.name}, {len(data.devices)} devices, {rounds} rounds",
        storage=f"sqlite:///{folder / 'sweep.db'}",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
    )
    over = sum(trial.state.is_finished() for trial in study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=over)  # no trial is proposed twice
    study.optimize(trial_of, n_trials=max(0, trials - over))
    return study


def main(
    devices: int = 6, trials: int = 8, rounds: int = 3, folder: Path = Path("runs/sweep")
) -> float | None:
    """Sweep, test the best settings once, and return their mean accuracy on the test part."""
    data = shoal.load("watch", devices=devices)
    study = sweep(data, trials, rounds, folder)
    print("best on the windows set aside:", study.best_params, f"{study.best_value:.4f}")
    tested = shoal.simulate(data, rounds=rounds, **study.best_params).accuracy.mean
    print(f"on the test part: {tested:.4f}")
    return tested


if __name__ == "__main__":
    main()
