"""Groups of a service in secret mode: its algorithm on sums of devices' numbers, which are not
masked here."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aggregator.aggregation import sums as aggregation
from aggregator.aggregation.admission import Refusal, admit
from aggregator.aggregation.forgetting import forget
from aggregator.aggregation.orders import configured, start_campaign
from aggregator.aggregation.stored import load_models, load_state
from aggregator.core.sums import SecretSum
from aggregator.fleet import events as e
from aggregator.fleet.records import AdmittedUpdate, Assignment, Campaign
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.round_record import SUMMED, SURVEYED
from algorithms.composition import AlgorithmSpec, make_algorithm, read_algorithm
from algorithms.core.probe import make_probe
from algorithms.groupings.sums import density
from algorithms.privacy.gaussian import spent
from algorithms.sums import exchange_of, num_inputs, tree_of
from edge_client.core.survey import DeviceSurvey, coordinates, numbers_of
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from tests.fleet.cases import all_work, run
from tests.fleet.secret_world import Secret
from tests.fleet.world import USUAL_GATE, Client, settings_of
from wire.arrays.tensors import Tensors
from wire.messages import Metrics, TellGroup, Update
from wire.secret.coordinates import node_of
from wire.secret.question import SumQuestion

SPEC = read_algorithm("distfl+uniform")


class Served(Secret):
    """A service whose devices have surveys of two populations, even and odd ones."""

    def __init__(self, fleet: FleetData, count: int = 20, spec: AlgorithmSpec = SPEC) -> None:
        objective = objective_for_fleet(fleet, spec, 0)
        self.bundle = describe_bundle(
            objective, name=fleet.name, classes=fleet.classes, window=fleet.window
        )
        self.probe = make_probe(objective.model, fleet.window.shape)
        self.algorithm, self.blobs = make_algorithm(spec), MemoryBlobs()
        self.responses = {"survey": self.bundle.manifest.responses("survey")}
        self.notes = list[dict[str, Any]]()
        self.rng, self.surveys = np.random.default_rng(0), dict[str, DeviceSurvey]()
        for number in range(count):
            self.surveys[f"d{number}"] = self.survey(number % 2)
        super().__init__(*self.surveys)

    def survey(self, population: int) -> DeviceSurvey:
        count, shift = num_inputs(self.responses), 1.0 if population else -1.0
        means = self.rng.normal(shift, 0.2, count)
        return DeviceSurvey(means, np.ones(count), self.rng.normal(0, 0.1, 32))

    def begin(self, settings: dict[str, Any]) -> None:
        chosen = settings_of(
            name="run", bundle=self.bundle.digest, responses=self.responses, **settings
        )
        parts = (chosen, self.algorithm, self.probe, self.bundle.initial, self.blobs, self.now_s)
        self.released["run"] = (False, (), USUAL_GATE)
        self.feed(start_campaign(*parts))
        self.ring()

    def aggregate(self, command: e.Aggregate, *_: Any, **__: Any) -> None:
        campaign = run(self)
        event = aggregation.aggregate_sums(campaign, self.algorithm, self.blobs, lambda: self.now_s)
        assert isinstance(event, e.Aggregated)
        self.notes.append(event.notes)
        self.now_s += 1.0  # else the same model in the next round would be the same question
        self.feed(event)

    def opened(self, campaign: Campaign, secret: SecretSum, _: MemoryBlobs) -> Tensors:
        """The sums of the devices' numbers; training changes nothing."""
        question = secret.question
        if not campaign.preparing:
            return {part: self.change(part, question) for part in question.parts}
        exchange = exchange_of(campaign.version.programs[f"node:{question.group}"])
        numbers = [numbers_of(exchange, self.surveys[d]) for d in secret.devices]
        return {part: np.sum([each[part] for each in numbers], 0) for part in question.parts}

    @staticmethod
    def change(part: str, question: SumQuestion) -> np.ndarray:
        by_group = {"0": 2.5, "1": 7.5}
        count = question.parts[part].count
        return np.full(count, by_group[question.group]) if part == "accuracy" else np.zeros(count)

    def node(self, device_id: str, work: Assignment) -> str:
        if not isinstance(tell := work.verbs[-1], TellGroup):
            return ""
        return node_of(coordinates(self.surveys[device_id], tell.scale), tell.planes)


@pytest.fixture
def served(fleet: FleetData, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(density, "DRAWS", 999)
    world = Served(fleet)
    monkeypatch.setattr(aggregation, "opened_numbers", world.opened)
    return world


def test_the_service_finds_groups_and_trains_a_model_of_each(served: Served) -> None:
    served.do_all()
    campaign = run(served)
    assert campaign.phase == "finished"
    groups = {d: member.group for d, member in campaign.members.items()}
    assert {(int(d[1:]) % 2, group) for d, group in groups.items()} in (
        {(0, "0"), (1, "1")},
        {(0, "1"), (1, "0")},
    )
    assert [phase for *_, phase in served.rounds] == ["preparing"] * 6 + ["training"] * 3
    assert served.notes[2][SURVEYED][""]["split"]
    summed = served.notes[-1][SUMMED]
    assert (summed["devices"], summed["accuracy"]) == (20, 0.5)
    assert {g: means["accuracy"] for g, means in summed["groups"].items()} == {"0": 0.25, "1": 0.75}
    assert campaign.models.keys() == {"initial", "0", "1"}


def test_a_robust_mean_is_that_of_the_means_of_cells(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Served(fleet, 17, read_algorithm("fedavg+median"))
    changes = {"0": 0.05, "1": -0.2, "2": 0.1}

    def opened(_: Campaign, secret: SecretSum, __: MemoryBlobs) -> Tensors:
        each = changes[secret.question.group.rpartition(".")[2]] * len(secret.devices)
        return {part: np.full(p.count, each) for part, p in secret.question.parts.items()}

    monkeypatch.setattr(aggregation, "opened_numbers", opened)
    world.do_all()
    campaign = run(world)
    assert (campaign.phase, campaign.trained) == ("finished", 3)
    models = load_models(campaign.version, world.blobs)
    moved = models["0"]["shared/head.bias"] - models["initial"]["shared/head.bias"]
    np.testing.assert_allclose(moved, 3 * 0.05, rtol=1e-5)
    assert world.notes[0][SUMMED]["devices"] >= 15
    assert world.notes[0][SUMMED]["groups"].keys() == {"0"}


def test_rounds_whose_models_were_given_up_have_spent_privacy_too(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Served(fleet, 8, read_algorithm("fedavg+uniform+shared-gaussian"))
    aggregate, given_up = aggregation.aggregate_sums, 4

    def aggregated(campaign: Campaign, *arguments: Any) -> e.Aggregated | e.SumFailed:
        return aggregate(replace(campaign, trained=campaign.trained + given_up), *arguments)

    def opened(_: Campaign, secret: SecretSum, __: MemoryBlobs) -> Tensors:
        return {part: np.zeros(p.count) for part, p in secret.question.parts.items()}

    monkeypatch.setattr(aggregation, "opened_numbers", opened)
    monkeypatch.setattr(aggregation, "aggregate_sums", aggregated)
    world.do_all()
    epsilons = [note["epsilon"] for note in world.notes]
    assert epsilons == [spent(1.0, 1.0, rounds + given_up, 1e-5) for rounds in (1, 2, 3)]


def test_a_note_names_the_device_whose_share_a_helper_could_not_use(served: Served) -> None:
    served.unusable = {"d3"}
    served.do_all()
    assert served.notes[0]["left_out"] == {"d3": "a helper could not use its share"}
    assert run(served).phase == "finished"
    assert not any("d3" in cell for cell in run(served).cells)


def test_a_newcomer_that_tells_its_group_is_among_its_devices(served: Served) -> None:
    while run(served).trained < 1:
        all_work(served)
    served.surveys["n"], served.clients["n"] = served.survey(1), Client()
    served.check_in("n")
    served.do_all()
    campaign = run(served)
    state = load_state(campaign.version, served.blobs)
    assert campaign.members["n"].group == campaign.members["d1"].group
    assert state.memory.membership["n"] == campaign.members["n"].group
    assert len(campaign.cells) == 2, "it is in no sum"


def test_a_forgotten_device_leaves_the_tree_whatever_its_name(served: Served) -> None:
    served.do_all()
    state = load_state(run(served).version, served.blobs)
    for device_id in ("d3", "0", "scale"):
        tree = tree_of(forget(served.algorithm, state, device_id))
        assert tree.places.keys() == tree_of(state).places.keys() - {device_id}
        assert (tree.scale, tree.nodes) == (tree_of(state).scale, tree_of(state).nodes)


def test_new_settings_leave_a_survey_as_it_is(served: Served) -> None:
    while len(served.rounds) < 4:
        all_work(served)
    campaign = run(served)
    changed = configured(campaign, campaign.settings, served.algorithm, served.blobs, served.now_s)
    assert changed.programs == campaign.version.programs


class TestAdmission:
    """A device tells one leaf of the plan's tree, and nothing else."""

    @pytest.fixture
    def telling(self, served: Served) -> Served:
        while "survey" not in {work.kind for _, _, work in served.plans}:
            all_work(served)
        return served

    @staticmethod
    def verdict(world: Served, node: str, tensors: Tensors) -> object:
        work = world.assigned("d1")
        update = Update(
            *(run(world).settings.run_id, world.fleet.epoch, work.round, work.serial, "d1"),
            *(work.model, 77, 7, Metrics(7, 1.0, 3), Metrics(7, 1.0, 3)),
            node=node,
        )
        return admit(world.fleet, "d1", update, tensors, "e" * 64, 100, lambda _: {})

    def test_a_leaf_is_admitted_without_anything_about_the_data(self, telling: Served) -> None:
        verdict = self.verdict(telling, "1", {})
        assert isinstance(verdict, AdmittedUpdate)
        assert (verdict.num_train, verdict.num_steps) == (0, 0)
        assert verdict.evaluated == verdict.trained == Metrics()

    @pytest.mark.parametrize("node", ["", "00", "111"])
    def test_what_is_no_leaf_is_refused(self, telling: Served, node: str) -> None:
        verdict = self.verdict(telling, node, {})
        assert isinstance(verdict, Refusal)
        assert verdict.reason == "wrong-layout"

    def test_tensors_are_refused(self, telling: Served) -> None:
        verdict = self.verdict(telling, "1", {"response/x": np.zeros(1, np.float32)})
        assert isinstance(verdict, Refusal)

    def test_a_device_cannot_leave_the_node_that_it_has_told(self, telling: Served) -> None:
        members = run(telling).members
        in_node = members.set("d1", replace(members["d1"], node="0"))
        telling.fleet.campaigns["run"] = replace(run(telling), members=in_node)
        verdict = self.verdict(telling, "1", {})
        assert isinstance(verdict, Refusal)
        assert "from node '0'" in verdict.detail

    def test_a_plan_that_asks_for_no_node_gets_none(self, served: Served) -> None:
        served.carry_out()
        verdict = self.verdict(served, "1", {})
        assert isinstance(verdict, Refusal)
        assert verdict.detail == "update with a node, but the plan asks for none"
