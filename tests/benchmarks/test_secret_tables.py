"""The tables of noise in shares and of robust means over cells."""

from benchmarks import secret_cells, secret_noise


def test_a_row_has_the_mean_and_the_range_of_each_epsilon() -> None:
    accuracies = {noise: [80.0, 82.0, 87.0] for noise in secret_noise.NOISES}
    rows = [{"devices": 1000, "accuracies": accuracies}]
    shown = secret_noise.section({"machine": "a machine", "rows": rows})
    assert "| devices | none | 20 | 8 | 4 | 2 | 1 |" in shown
    assert "| 1,000 | 83.0 (80.0 to 87.0) | 83.0" in shown


def test_a_row_has_the_mean_of_each_number_of_attackers_and_says_where_it_was_run() -> None:
    accuracies = {n: [80.0, 84.0] for n in secret_cells.ATTACKERS}
    rows = [
        {"attack": "label-flip", "mean": "median", "secret": secret, "accuracies": accuracies}
        for secret in (True, False)
    ]
    shown = secret_cells.section({"machine": "a machine", "rows": rows})
    assert "| `label-flip` | `median` | 82.0 | 82.0 | 82.0 | 82.0 | 82.0 |" in shown
    assert "| `label-flip` | `median`, clear mode | 82.0" in shown


def test_noise_costs_accuracy_on_few_devices() -> None:
    data = secret_noise.mnist_of(20, 0)
    clear, noisy = (secret_noise.accuracy_of(data, secret_noise.NOISES[n], 0) for n in (0, -1))
    assert clear > noisy + 20
