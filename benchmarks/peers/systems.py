"""Systems that are compared, their use of two cores, and their environments."""

from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
REQUIREMENTS = Path(__file__).with_name("requirements")


@dataclass(frozen=True)
class System:
    """One row of the table."""

    name: str
    title: str
    runner: str
    """`benchmarks.peers.run_RUNNER` is what is started."""
    processes: int
    """One per device when 0."""
    threads: int
    environment: str = ""
    """Its file in `requirements/`, and its virtual environment; this process's own environment when
    empty."""
    how: str = ""
    """The choice made where its documentation leaves one."""
    most_devices: int | None = None
    """It gets no more devices than this."""

    def devices(self, asked: int) -> int:
        """Return the number of devices that it gets of so many."""
        return min(asked, self.most_devices or asked)

    @property
    def requirements(self) -> Path:
        """Every version that is installed."""
        return REQUIREMENTS / f"{self.environment}.txt"


SYSTEMS = (
    System(
        "shoal",
        "Shoal",
        "shoal",
        1,
        2,
        how="`simulate`: one process, two threads of the native engine",
    ),
    System("plain-1", "plain PyTorch loop", "plain", 1, 1, how="one process, one thread"),
    System("plain-2", "plain PyTorch loop", "plain", 1, 2, how="one process, torch's two threads"),
    System("pfl-1", "pfl-research", "pfl", 1, 1, "pfl", "one process"),
    System(
        "pfl-2",
        "pfl-research",
        "pfl",
        2,
        1,
        "pfl",
        "two processes joined by torch.distributed, its guide's way",
    ),
    System(
        "fedlab",
        "FedLab",
        "fedlab",
        1,
        2,
        "fedlab",
        "standalone pipeline; its clients are serial, so torch's threads use the cores",
    ),
    System(
        "flower",
        "Flower",
        "flower",
        2,
        1,
        "flower",
        "simulation runtime on Ray, one core per client, two clients at once",
    ),
    System(
        "nvflare",
        "NVFlare",
        "nvflare",
        0,
        1,
        "nvflare",
        "simulator, every client resident in a process (its recipe's default): 281 MB each, so 50 "
        "devices, for 100 would take 29 GB",
        most_devices=50,
    ),
)


def choose(names: list[str]) -> list[System]:
    """The systems of these names; `pfl` means all of pfl's rows. All systems when no name is given.

    Raises:
        SystemExit: a name that is none of them, with the names there are.
    """
    for name in names:
        if not any(name in (s.name, s.runner) for s in SYSTEMS):
            raise SystemExit(
                f"no system is called {name!r}; there are {', '.join(s.name for s in SYSTEMS)}"
            )
    return [s for s in SYSTEMS if not names or s.name in names or s.runner in names]
