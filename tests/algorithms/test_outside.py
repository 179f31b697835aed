"""Choices from outside: files, modules, entry points of packages, and classes that Python code has
at hand."""

import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aggregator.fleet.records import Campaign
from algorithms import objectives, outside, registry
from algorithms.composition import (
    algorithm_of,
    choice,
    listing,
    make_algorithm,
    make_objective,
    read_algorithm,
    read_privacy,
)
from algorithms.groupings.ifca import Ifca
from algorithms.means.median import Median
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.fedrep import FedRepServer
from simulation.comparison.processes import run_all
from simulation.comparison.runs import Job
from simulation.contract.fleet import tiny_model
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import read_settings, simulate
from tests.support.pages import ROOT, blocks
from wire.errors import ConfigError

METHODS = """
    from algorithms.groupings.base import Defaults
    from algorithms.groupings.ifca import Ifca
    from algorithms.means.median import Median
    from algorithms.objectives.coordinator import DefaultCoordinator
    from algorithms.objectives.fedper import FedPer
    from algorithms.objectives.fedrep import FedRep
    from algorithms.personalisation.choices import Recalibrated
    from algorithms.privacy.gaussian import CentralGaussian

    class Server(DefaultCoordinator):
        def __init__(self, often: int = 2) -> None:
            self.often = often

    class Slower(FedPer):
        name = "slower"
        hyper = {**FedPer.hyper, "lr": 0.001}
        server = Server

    class Later(FedRep):
        name = "later"

    class Fours(Ifca):
        name = "fours"
        def __init__(self, k: int = 4) -> None:
            super().__init__(k)

    class Middle(Median):
        name = "middle"

    class Louder(CentralGaussian):
        name = "louder"

    class Anew(Recalibrated):
        name = "anew"

    class FedAvg(FedPer):
        name = "fedavg"

    class Unnamed(FedPer):
        pass

    class Spaced(FedPer):
        name = "two words"

    class Nothing:
        name = "nothing"

    class Half(Defaults):
        name, citation = "half", ""

    class Needs(Median):
        name = "needs"
        def __init__(self, share: float) -> None: ...

    class Fails(Median):
        name = "fails"
        def __init__(self) -> None:
            raise KeyError("no such thing")

    number = 3
"""


@pytest.fixture
def methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of methods, which is called methods.py from the folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods.py").write_text(textwrap.dedent(METHODS))
    return tmp_path / "methods.py"


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("methods.py:Slower", "objective"),
            ("methods.py:Slower:often=3:lr=0.1", "objective"),
            ("methods.py:Fours:k=3", "grouping"),
            ("methods.py:Middle", "mean"),
            ("methods.py:Louder:clip_norm=2", "privacy"),
            ("methods.py:Anew", "personalisation"),
        ],
    )
    def test_every_kind_composes_with_options_and_is_written_as_it_was_read(
        self, methods: Path, name: str, kind: str
    ) -> None:
        spec = read_algorithm(name)
        assert (str(spec), str(getattr(spec, kind))) == (name, name)
        assert make_algorithm(spec).name == name
        assert read_algorithm(str(spec)) == spec

    def test_all_five_choices_of_an_algorithm_come_from_one(self, methods: Path) -> None:
        spec = read_algorithm(
            "+".join(f"methods.py:{name}" for name in ("Slower", "Fours", "Anew"))
        )
        made = make_algorithm(spec)
        assert (
            made.objective,
            made.grouping.name,
            make_objective(spec, tiny_model(spec)).name,
        ) == ("slower+anew", "fours", "slower+anew")
        assert (
            make_algorithm(read_algorithm("methods.py:Slower+methods.py:Middle")).mean.name
            == "middle"
        )
        assert read_algorithm("fedavg").with_privacy("methods.py:Louder").mean.name == "uniform"

    def test_a_class_alone_has_the_servers_half_of_what_it_derives_from(
        self, methods: Path
    ) -> None:
        assert type(make_algorithm(read_algorithm("methods.py:Later")).coordinator) is FedRepServer

    def test_a_class_without_a_name_has_that_of_its_class(self, methods: Path) -> None:
        unnamed = registry.find("methods.py:Unnamed")[1]
        assert (unnamed.name, FedPer.name) == ("Unnamed", "fedper")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("none.py:Slower", "algorithm file none.py: there is no such file"),
            (
                "methods.py:Missing",
                "algorithm file methods.py has no 'Missing'; its classes are Server, Slower, Later",
            ),
            (
                "methods.py",
                "No algorithm 'methods.py'. A class of your own is written FILE.py:CLASS",
            ),
            (
                "methods.py:FedAvg",
                "methods.py:FedAvg has the `name` 'fedavg', which is one of Shoal's own. "
                "Choose another",
            ),
            ("methods.py:Spaced", "`name` must be of letters, digits.*, got 'two words'"),
            (
                "methods.py:Nothing",
                "methods.py:Nothing must be a class derived from the one of its kind",
            ),
            (
                "methods.py:number",
                "methods.py:number must be a class .*, got an object of type int",
            ),
            ("methods.py:Half", "methods.py:Half is a grouping and lacks group"),
            ("methods.py:Server", "is only the server's half of an objective"),
            ("methods.py:Needs", "argument 'share' of its __init__ needs a default"),
            ("methods.py:Fails", "cannot be made with its defaults: KeyError: 'no such thing'"),
            (
                "methods.py:Slower:mu=1",
                "'mu' is not an option of methods.py:Slower; it has often=2, lr=0.001, "
                "momentum=0.9",
            ),
            ("methods.py:Slower+fedavg", "methods.py:Slower and fedavg are of one kind, objective"),
            ("no.such:Thing", "no.such:Thing: Python finds no module 'no'"),
            (
                "python:Thing",
                "python:Thing is a class from Python code that this process does not have",
            ),
        ],
    )
    def test_what_cannot_be_used_is_one_clear_error(
        self, methods: Path, name: str, reason: str
    ) -> None:
        with pytest.raises(ConfigError, match=reason):
            read_algorithm(name)

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("x = 1\nraise ValueError('not here')", "bad.py, line 2: ValueError: not here"),
            ("import nowhere", "bad.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
            ("class A(:", "bad.py, line 1: SyntaxError"),
            ("import sys\nsys.exit(0)", "bad.py, line 2: SystemExit: 0"),
        ],
    )
    def test_a_file_that_raises_is_named_with_its_line(
        self, methods: Path, code: str, reason: str
    ) -> None:
        methods.with_name("bad.py").write_text(code)
        with pytest.raises(ConfigError, match=reason):
            read_algorithm("bad.py:A")

    def test_a_privacy_mechanism_is_expected_where_one_is_named(self, methods: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"privacy 'methods.py:Middle': methods.py:Middle is a mean"
        ):
            read_privacy("methods.py:Middle")

    def test_a_path_is_whole_where_it_has_to_last(
        self, methods: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = read_algorithm("methods.py:Slower:lr=0.1+distfl").anchored()
        assert str(spec) == f"{methods}:Slower:lr=0.1+distfl"
        monkeypatch.chdir("/")
        assert read_algorithm(str(spec)) == spec
        assert read_algorithm("fedavg").anchored() == read_algorithm("fedavg")


class TestSources:
    """Two files, and two states of one file, are never taken for each other."""

    def test_classes_of_one_name_in_two_files_are_two(self, methods: Path) -> None:
        other = methods.with_name("other.py")
        other.write_text(methods.read_text().replace("0.001", "0.5"))
        rates = [
            make_objective(s := read_algorithm(f"{file}:Slower"), tiny_model(s)).hyper["lr"]
            for file in ("methods.py", "other.py")
        ]
        assert rates == [0.001, 0.5]

    def test_an_edited_file_is_read_anew_and_runs_set_up_before_are_refused_elsewhere(
        self, methods: Path
    ) -> None:
        before = read_algorithm("methods.py:Slower")
        methods.write_text(methods.read_text().replace("0.001", "0.5"))
        now = read_algorithm("methods.py:Slower")
        assert str(before) == str(now)
        assert before != now
        assert [make_objective(spec, tiny_model(spec)).hyper["lr"] for spec in (before, now)] == [
            0.001,
            0.5,
        ]
        outside._loaded.clear()  # as in another process
        assert make_algorithm(now)
        with pytest.raises(
            ConfigError,
            match=r"methods.py:Slower: its source has changed since this run was set up",
        ):
            make_algorithm(before)

    def test_results_of_a_comparison_are_those_of_the_file_as_it_is(self, methods: Path) -> None:
        def key() -> str:
            settings = SimulationSettings(read_algorithm("methods.py:Slower"))
            return Job("watch", read_settings(settings)).key

        before = key()
        assert key() == before
        methods.write_text(methods.read_text() + "\n# edited\n")
        assert key() != before

    def test_a_checkpoint_goes_on_with_the_same_file_and_with_no_other(
        self, methods: Path, fleet: FleetData
    ) -> None:
        def run() -> Campaign:
            settings = SimulationSettings(read_algorithm("methods.py:Slower"), 2)
            return simulate(
                fleet, settings, engine=EngineOptions(checkpoint=methods.parent / "kept")
            ).campaign

        assert run().models == run().models
        methods.write_text(methods.read_text() + "\n# edited\n")
        with pytest.raises(
            ConfigError,
            match=r"checkpoint .* is of a run with source of methods\.py:Slower '\w+', and this "
            r"one has '\w+'\. Use another folder",
        ):
            run()

    @pytest.mark.full
    def test_processes_of_a_comparison_find_the_class(self, methods: Path) -> None:
        algorithm = read_algorithm("methods.py:Slower+methods.py:Middle")
        settings = read_settings(SimulationSettings(algorithm, 1, devices=2))
        jobs = [Job("watch", msgspec.structs.replace(settings, seed=seed)) for seed in (0, 1)]
        results = run_all(jobs, methods.parent / "runs", workers=2)
        assert [result["algorithm"] for result in results] == [
            "methods.py:Slower+methods.py:Middle"
        ] * 2
        assert all(result["accuracy"]["mean"] is not None for result in results)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The entry points of a package that is installed for the time of a test, to be written
    into."""
    (tmp_path / "ourmethods").mkdir()
    (tmp_path / "ourmethods" / "__init__.py").write_text("")
    (tmp_path / "ourmethods" / "all.py").write_text(textwrap.dedent(METHODS))
    info = tmp_path / "ourmethods-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ourmethods\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "ourmethods"]:
        monkeypatch.delitem(sys.modules, name)
    registry.installed.cache_clear()
    yield info / "entry_points.txt"
    registry.installed.cache_clear()


class TestEntryPoints:
    ENTRIES = "[shoal.{}]\n{} = ourmethods.all:{}\n"

    @pytest.mark.parametrize(
        ("group", "name", "attribute", "kind"),
        [
            ("objectives", "slower", "Slower", "objective"),
            ("groupings", "fours", "Fours", "grouping"),
            ("means", "middle", "Middle", "mean"),
            ("privacy", "louder", "Louder", "privacy"),
            ("personalisation", "anew", "Anew", "personalisation"),
        ],
    )
    def test_a_package_adds_names_of_every_kind(
        self, package: Path, group: str, name: str, attribute: str, kind: str
    ) -> None:
        package.write_text(self.ENTRIES.format(group, name, attribute))
        spec = read_algorithm(name)
        assert getattr(spec, kind).name == name
        assert spec.sources == {name: "ourmethods 1.2"}
        assert make_algorithm(spec).name == name
        assert [row["choice"] for row in listing() if row["name"] == name] == [kind]

    @pytest.mark.full
    def test_the_entry_of_the_page(self, package: Path) -> None:
        """docs/tutorial.md: the table of a `pyproject.toml`, which becomes entry points; the module
        is the example's file."""
        (block,) = blocks("docs/tutorial.md", "toml")
        ((group, entries),) = tomllib.loads(block.text)["project"]["entry-points"].items()
        ((name, value),) = entries.items()
        module = value.partition(":")[0].rpartition(".")[2]
        (package.parents[1] / "ourmethods" / f"{module}.py").write_text(
            (ROOT / "examples" / "opposed.py").read_text()
        )
        package.write_text(f"[{group}]\n{name} = {value}\n")
        assert make_algorithm(read_algorithm(name)).grouping.name == name

    @pytest.mark.parametrize(
        ("entries", "text", "reason"),
        [
            (
                ("objectives", "fedavg", "FedAvg"),
                "fedavg",
                "'fedavg' is a name of Shoal's own, and also of an installed package",
            ),
            (
                ("means", "slower", "Slower"),
                "slower",
                "must be the mean 'slower', and is the objective 'slower'",
            ),
            (
                ("means", "middling", "Middle"),
                "middling",
                "must be the mean 'middling', and is the mean 'middle'",
            ),
            (
                ("means", "lost", "Lost"),
                "lost",
                "'lost' of ourmethods 1.2 .* cannot be loaded: AttributeError",
            ),
            (("means", "middle", "Middle"), "midle", "Did you mean middle"),
        ],
    )
    def test_what_cannot_be_used_is_one_clear_error(
        self, package: Path, entries: tuple[str, str, str], text: str, reason: str
    ) -> None:
        package.write_text(self.ENTRIES.format(*entries))
        with pytest.raises(ConfigError, match=reason):
            read_algorithm(text)

    def test_a_package_with_a_registered_name_takes_no_other_name_away(self, package: Path) -> None:
        package.write_text(self.ENTRIES.format("objectives", "fedavg", "FedAvg"))
        assert str(read_algorithm("fedprox+median")) == "fedprox+median"
        assert [*registry.Known("objective")].count("fedavg") == 1

    def test_a_module_of_a_package_can_be_named(self, package: Path) -> None:
        assert (
            make_algorithm(
                read_algorithm("ourmethods.all:Fours:k=2+ourmethods.all:Middle")
            ).mean.name
            == "middle"
        )


class Quarter(Median):
    """The median, under another name."""

    name = "quarter"


class TestObjects:
    def test_classes_compose_with_names_and_options(self) -> None:
        spec = algorithm_of("fedprox:mu=0.1", choice(Ifca, k=3), Quarter)
        assert str(spec) == "fedprox:mu=0.1+ifca:k=3+tests.algorithms.test_outside:Quarter"
        assert type(make_algorithm(spec).mean) is Quarter
        assert read_algorithm(str(spec)) == spec

    def test_a_class_without_a_file_is_that_of_this_process(self, fleet: FleetData) -> None:
        def made(scale: float) -> type[Median]:
            class Scaled(Median):
                name = "scaled"
                factor = scale

            return Scaled

        one, other = algorithm_of("fedavg", made(1.0)), algorithm_of("fedavg", made(2.0))
        assert [vars(type(make_algorithm(spec).mean))["factor"] for spec in (one, other)] == [
            1.0,
            2.0,
        ]
        assert one != other
        assert simulate(fleet, SimulationSettings(one, 1)).summary.accuracy.mean is not None

    @pytest.mark.parametrize(
        ("part", "reason"),
        [
            (3, "must be a name, a class, .*, got 3"),
            (Path, "must be a class derived from the one of its kind"),
            (choice, "must be a name, a class"),
            ("nothing", "No algorithm 'nothing'"),
        ],
    )
    def test_what_is_no_choice_is_one_clear_error(self, part: object, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            algorithm_of(part)  # type: ignore[arg-type]

    def test_options_are_checked(self) -> None:
        with pytest.raises(ConfigError, match=r"k must be a whole number.*, got '0'"):
            choice(Ifca, k=0)


OWN = """
from algorithms.objectives.fedper import FedPer
from algorithms.spec import option

class Ours(FedPer):
    name, citation = "ours", "a file"
    hyper = {**FedPer.hyper, "pull": option(0.5, "strength", low=0)}
    width: int = option(3, "units", low=1)
"""


def test_an_objective_is_added_by_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: FleetData
) -> None:
    """A file in the folder of objectives is all: its name, its options with their ranges, both
    halves, and a simulation."""
    (tmp_path / "ours.py").write_text(OWN)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    monkeypatch.setitem(
        registry.CHOICES, "objective", registry.registered(registry.KINDS["objective"])
    )
    spec = read_algorithm("ours:width=2:pull=1")
    assert make_algorithm(spec).objective == "ours"
    made = make_objective(spec, tiny_model(spec))
    assert (vars(made)["width"], made.hyper["pull"]) == (2, 1.0)
    (row,) = [row for row in listing() if row["name"] == "ours"]
    assert row["options"] == {"width": 3, "lr": 0.005, "momentum": 0.9, "pull": 0.5}
    with pytest.raises(ConfigError, match=r"pull must be a number from 0.*, got '-1'"):
        read_algorithm("ours:pull=-1")
    assert simulate(fleet, SimulationSettings(spec, 1)).summary.accuracy.mean is not None
