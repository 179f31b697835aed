"""A run by messages on a virtual clock, to which the faster engine is compared bit by bit.

The aggregator's runner and one agent per device are joined by an in-process broker. Messages,
admission, rounds and the execution of plans are the code that runs in the field.
"""

from collections.abc import Callable

from aggregator.core.steps import Gate, Step
from aggregator.fleet.events import Aggregated, Event, Started
from aggregator.fleet.records import Fleet
from aggregator.leadership.rivals import Rivals
from aggregator.releases import ReleaseMaker
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import Runner
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import FleetLink
from aggregator.view.summary import count_groups
from edge_client.agent.loop import Agent
from edge_client.core.kept import own_tensors
from edge_client.core.ports import Graphs
from edge_client.storage.state import DeviceState
from edge_client.work.plan import read_blob
from simulation.engine.experiment import EngineResult, Experiment
from simulation.engine.progress import HeldModels, OnProgress, RunProgress
from simulation.engine.workers.attacks import Attacker
from simulation.engine.workers.device_host import PERMISSIONS, repeatable_secret
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors
from wire.errors import ConfigError, Stalled
from wire.links.in_process import InProcessBroker
from wire.links.port import Link, LinkEvent, Will
from wire.pieces import MOST_BYTES
from wire.topics import Topics

PATIENCE = 20
"""Maximum number of times that the clock advances in one round before the simulation gives up."""


class VirtualClock:
    """Seconds since the start of a simulation, which change only by assignment."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_by_messages(
    experiment: Experiment, graphs: Graphs, on_progress: OnProgress
) -> EngineResult:
    """Run a fleet to the end.

    Raises:
        ConfigError: the algorithm does not fit the bundle.
        Stalled: no device can carry out its plan.
    """
    settings, attack = experiment.settings, experiment.attack
    broker, clock, topics = InProcessBroker(), VirtualClock(), Topics("simulation")
    store, blobs = MemoryStore(), MemoryBlobs()
    link = FleetLink(broker.connect("aggregator"), topics, "0")

    def observe(fleet: Fleet, event: Event) -> None:
        if isinstance(event, Started | Aggregated):
            campaign = fleet.campaigns[event.campaign]
            groups = {d: member.group for d, member in campaign.members.items() if member.group}
            on_progress(RunProgress(campaign.trained, count_groups(groups)))

    telemetry = Telemetry(None, clock)
    inbox = FleetInbox(topics, clock, link.offered, telemetry)
    rivals = Rivals(None, clock, inbox.count)
    runner = Runner(store, link, inbox, telemetry, rivals, clock, observe=observe)
    exported = Exported(experiment.bundle, experiment.probe)
    runner.open(settings, experiment.algorithm, exported, blobs)
    runner.begin(1)
    maker = ReleaseMaker("off", (Step(1.0),), Gate(), None, lambda _name: blobs, clock)
    states = {device_id: DeviceState() for device_id in experiment.devices}

    agents: dict[str, Agent] = {}
    for device_id, windows in sorted(experiment.devices.items()):
        attacks = attack is not None and device_id in attack.attackers
        agent = (Attacker if attacks else Agent)(
            device_id,
            topics,
            broker.connect(device_id, Will(topics.device(device_id, "status"), b"")),
            attack.poison(windows) if attack is not None and attacks else windows,
            states[device_id],
            lambda _: graphs,
            clock=clock,
            policy=PERMISSIONS,
            secret=repeatable_secret,
            most_whole=MOST_BYTES,  # a broker in this process needs no pieces
        )
        if attack is not None and isinstance(agent, Attacker):
            agent.attack = attack
        agents[device_id] = agent
    _deliver(runner, maker, list(agents.values()), clock)
    campaign = runner.fleet.campaigns[settings.name]
    models = HeldModels(
        experiment.objective,
        lambda key: decode_tensors(blobs.get(campaign.models[key]), OWN_FILES)[0],
        lambda device_id: _own_tensors(states[device_id], experiment),
    )
    return EngineResult(
        runner.fleet,
        store.rounds(settings.name),
        blobs,
        lambda device_id, x: agents[device_id].predict(x),
        models,
        "messages",
    )


def _own_tensors(state: DeviceState, experiment: Experiment) -> Tensors:
    """Return every tensor with which a device answers, from its agent's storage.

    Raises:
        ConfigError: it has finished no run.
    """
    current = state.current()
    if current is None:
        raise ConfigError("This device has no model: it carried out no plan of the last round")
    model, private = (
        decode_tensors(read_blob(state.blob, name), OWN_FILES)[0] if name else {}
        for name in (current.model, current.private)
    )
    return own_tensors(experiment.bundle, model, private)


def _deliver(runner: Runner, maker: ReleaseMaker, agents: list[Agent], clock: VirtualClock) -> None:
    """Deliver messages and advance the clock until the campaign is over.

    Every device then has its model. The clock advances to the next timer when no message is left.

    Raises:
        Stalled: a round was repeated `PATIENCE` times.
    """
    links: list[tuple[Link, Callable[[LinkEvent], None]]] = [
        (runner.link, runner.handle),
        *((agent.link, agent.handle) for agent in agents),
    ]
    reopened: dict[int, int] = {}
    while True:
        delivered = 0
        for link, handle in links:
            while (event := link.receive(timeout_s=0)) is not None:
                handle(event)
                delivered += 1
        for released in list(maker.due(runner.fleet)):
            runner.order(released)
            delivered += 1
        if delivered:
            continue
        next_s = min(runner.next_s(), *(agent.retry_at_s for agent in agents))
        if runner.finished and next_s > clock.now_s:
            return
        if next_s == float("inf"):
            raise RuntimeError(
                "The simulation stands still: no message, no timer, and the campaign is not over"
            )
        if next_s > clock.now_s:
            number = next(iter(runner.fleet.campaigns.values())).round
            reopened[number] = reopened.get(number, 0) + 1
            if reopened[number] > PATIENCE:
                raise Stalled(
                    f"Round {number} was started {PATIENCE} times, and no device could carry out "
                    "its plan. The log has the reasons."
                )
        clock.now_s = max(clock.now_s, next_s)
        runner.tick()
        for agent in agents:
            agent.tick()
