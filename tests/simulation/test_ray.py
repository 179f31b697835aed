"""Workers on a Ray cluster: the same bits as one process, whatever becomes of its machines."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from algorithms.algorithm import Algorithm
from algorithms.composition import read_algorithm
from simulation.engine.options import EngineOptions
from simulation.engine.workers.private_store import MappedStore, TravellingStore
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.engines import run, same
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError, ShoalError

pytestmark = pytest.mark.full

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

MACHINE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 100 * 2**20,
    "include_dashboard": False,
}
SOON_LOST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines of one CPU each. The driver belongs to the first."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**MACHINE, "_system_config": SOON_LOST})
    cluster.add_node(**MACHINE)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The workers of the runs of a test; none of them works before all have started."""
    from simulation.engine.workers.ray import RayWorkers

    deal, seen = RayWorkers._deal, list[Any]()

    def patient(self: Any, *arguments: Any) -> None:
        if self not in seen:
            seen.append(self)
            for member in self._members:
                ray.get(member.greeting)
                member.greeting = None
        deal(self, *arguments)

    monkeypatch.setattr(RayWorkers, "_deal", patient)
    return seen


def on_ray(
    address: str, algorithm: str, path: Any = "eager", num_workers: int = 0
) -> SimulationResult:
    settings = SimulationSettings(read_algorithm(algorithm), 2, batch_size=8)
    return simulate(
        synthetic_fleet(8, shift=1.0),
        settings,
        engine=EngineOptions(path, num_workers, cluster=address),
    )


def in_second_round(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Act once, when the first device has something to keep after the second round, while others
    are at work."""
    put, acted = MappedStore.put, list[str]()

    def watched(arena: MappedStore, device_id: str, number: int, tensors: Any) -> None:
        put(arena, device_id, number, tensors)
        if number == 2 and not acted:
            acted.append(device_id)
            act()

    monkeypatch.setattr(MappedStore, "put", watched)


def test_what_a_device_keeps_goes_with_the_plan_and_comes_back() -> None:
    first, second = {"private/a": synthetic_fleet(1).devices["d0"].train_x}, dict[str, Any]()
    kept = TravellingStore(first)
    assert kept.get("d0", 1) == first
    assert kept.after is None
    kept.put("d0", 1, second)
    assert kept.after is second
    kept.before = {}
    assert kept.get("d1", 1) == {}


@pytest.mark.slow
def test_same_bits_as_in_one_process(cluster: Any, workers: list[Any]) -> None:
    same(run("distfl", "eager"), on_ray(cluster.address, "distfl"))
    assert not ray.is_initialized()


@pytest.mark.slow
def test_methods_of_a_users_own_file_go_to_machines_that_do_not_have_it(
    cluster: Any, workers: list[Any], tmp_path: Path
) -> None:
    for name in ("mixup.py", "opposed.py"):
        shutil.copy(Path(__file__).parents[2] / "examples" / name, tmp_path)
    algorithm = read_algorithm(f"{tmp_path}/mixup.py:MixupHead+{tmp_path}/opposed.py:Opposed")
    for name in ("mixup.py", "opposed.py"):
        (tmp_path / name).unlink()
    settings, data = SimulationSettings(algorithm, 2, batch_size=8), synthetic_fleet(8, shift=1.0)
    here, there = (
        simulate(data, settings, engine=EngineOptions("eager", cluster=c))
        for c in ("", cluster.address)
    )
    same(here, there)


@pytest.mark.slow
def test_models_that_nobody_looks_at_are_summed_up_where_they_are_trained(
    cluster: Any, workers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run("fedavg", "eager")
    monkeypatch.setattr(Algorithm, "sum_up", None)  # the driver's; actors have modules of their own
    same(here, on_ray(cluster.address, "fedavg"))


@pytest.mark.slow
def test_a_machine_lost_in_a_round_changes_no_bit(
    cluster: Any,
    workers: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = next(iter(cluster.worker_nodes))
    try:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "shoal.simulation"):
            in_second_round(patch, lambda: cluster.remove_node(second, allow_graceful=False))
            outcome = on_ray(cluster.address, "ditto")
        assert "A worker on Ray was lost: round=2" in caplog.text
        same(run("ditto", "eager"), outcome)
    finally:
        cluster.add_node(**MACHINE)


@pytest.mark.slow
def test_a_worker_that_ends_is_replaced(
    cluster: Any,
    workers: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "shoal.simulation"):
        in_second_round(patch, lambda: ray.kill(workers[0]._members[0].actor))
        outcome = on_ray(cluster.address, "ditto", num_workers=1)
    assert "A worker on Ray was lost: round=2" in caplog.text
    same(run("ditto", "eager"), outcome)


@pytest.mark.slow
def test_graphs_that_cannot_be_made_on_a_machine_end_the_run(cluster: Any) -> None:
    fleet, here = synthetic_fleet(2), os.getpid()
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)

    class Homely(type(objective)):  # type: ignore[misc]  # a class that is known only now
        def graphs(self) -> Any:
            if os.getpid() != here:
                raise RuntimeError("out of order")
            return super().graphs()

    objective.__class__ = Homely
    with pytest.raises(ShoalError, match=r"Ray at .*: a worker failed: RuntimeError: out of order"):
        simulate(
            fleet,
            SimulationSettings(read_algorithm("fedavg"), 1),
            objective=objective,
            engine=EngineOptions("eager", 1, cluster=cluster.address),
        )


def test_a_cluster_without_room_ends_the_run(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.engine.workers.ray.PATIENCE_S", 1.0)
    ray.init(cluster.address, log_to_driver=False)
    try:
        others = [ray.remote(num_cpus=1)(TravellingStore).remote() for _ in range(2)]
        ray.get([other.get.remote("", 0) for other in others])
        with pytest.raises(
            ShoalError,
            match="no worker started in 1 s; 0 of the cluster's 2 CPUs are free, one is needed",
        ):
            on_ray(cluster.address, "fedavg")
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_without_an_address_the_cluster_that_is_there_is_taken(cluster: Any) -> None:
    outcome = on_ray("any", "fedavg")
    same(run("fedavg", "eager"), outcome)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["local", "any"])
def test_a_cluster_of_this_machine_alone(address: str) -> None:
    outcome = on_ray(address, "fedrep", "native", num_workers=2)
    assert outcome.summary.backend == "native"
    same(run("fedrep", "native"), outcome)


def refuse(address: str, **_: Any) -> None:
    """Fail like `ray.init` where no cluster runs."""
    raise ConnectionError(
        "Could not find any running Ray instance. Please specify the one to connect to by setting "
        "`--address` flag."
    )


def test_a_cluster_that_is_not_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"cluster '127.0.0.1:9' cannot be used: .*Connection refused"
    ):
        on_ray("127.0.0.1:9", "fedavg")
    with pytest.raises(
        ConfigError, match="cluster 'nonsense' cannot be used: Invalid address format"
    ):
        on_ray("nonsense", "fedavg")
    with pytest.raises(
        ConfigError, match="cluster 'auto': backend messages runs in one process only"
    ):
        EngineOptions("messages", cluster="auto")
    with monkeypatch.context() as patch:  # another test's cluster may be up on this machine
        patch.setattr("ray.init", refuse)
        with pytest.raises(
            ConfigError,
            match=r"^cluster 'auto': this machine is not part of a Ray cluster. Start one .* "
            r"local or any\.$",
        ):
            on_ray("auto", "fedavg")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=r"needs the package Ray: pip install 'shoal\[simulation,ray\]'"
    ):
        EngineOptions(cluster="auto")
