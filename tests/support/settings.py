"""Settings of a small campaign."""

from aggregator.core.settings import ADMIT_ALL, RunSettings

SETTINGS = RunSettings(
    run_id="run-1",
    algorithm="fedavg",
    data="x",
    bundle="0" * 64,
    rounds=3,
    min_devices=1,
    deadline_s=10.0,
    grace_s=1.0,
    reported={"step": ()},
    responses={},
    **ADMIT_ALL,
)
