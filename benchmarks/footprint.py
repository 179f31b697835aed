"""Size of the client on a board: `python -m benchmarks.footprint ENVIRONMENT` measures an
environment with `shoal[edge]` alone.

It counts distributions and bytes below site-packages, and starts the environment's own `shoal-edge`
with a few windows and a broker in this process. It measures the resident memory of the idle client,
and the seconds from its start to its check-in, the best of some starts.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.results.report import keep
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import start_program, stop_processes
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.topics import Topics

OUT = Path(__file__).parent / "results" / "footprint.json"
IDLE_S = 3.0
"""Seconds after the check-in at which memory is read."""


def footprint(environment: Path, starts: int = 3) -> dict[str, float]:
    """`distributions`, `site_packages_mb`, `idle_rss_mb` and `start_s` of an environment."""
    packages = next((environment / "lib").glob("python3*/site-packages"))
    sizes = [
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    started = [cold_start(environment / "bin" / "shoal-edge") for _ in range(starts)]
    return {
        "distributions": float(
            len(
                [
                    path
                    for path in packages.glob("*.dist-info")
                    if not path.name.startswith(("pip-", "setuptools-"))
                ]
            )
        ),
        "site_packages_mb": sum(sizes) / 1e6,
        "idle_rss_mb": max(rss_mb for _, rss_mb in started),
        "start_s": min(start_s for start_s, _ in started),
    }


def cold_start(command: Path) -> tuple[float, float]:
    """Seconds from the start of a client to its check-in, and its resident memory in MB a while
    later."""
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as made:
        folder, topics = Path(made), Topics("default")
        rng = np.random.default_rng(0)
        for name in ("train", "test"):
            np.savez(
                folder / f"{name}.npz",
                X=rng.normal(size=(48, 6, 128)).astype(np.float32),
                y=np.arange(48) % 6,
            )
        link = MqttLink(BrokerAddress.parse(broker.url), "listener")
        link.subscribe(topics.device("pi-1", "check-in"))
        options = [
            "--id",
            "pi-1",
            "--data",
            made,
            "--state",
            str(folder / "state"),
            "--broker",
            broker.url,
            "--insecure",
        ]
        alone = ["env", "PYTHONPATH=", "OMP_NUM_THREADS=1"]
        began_s = time.monotonic()
        process = start_program([*alone, str(command), "run", *options], folder / "edge.log")
        try:
            while not isinstance(link.receive(timeout_s=60), Delivery):
                if process.poll() is not None or time.monotonic() > began_s + 60:
                    raise RuntimeError((folder / "edge.log").read_text())
            start_s = time.monotonic() - began_s
            time.sleep(IDLE_S)
            status = Path(f"/proc/{process.pid}/status").read_text()
            return start_s, int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6
        finally:
            stop_processes([process])
            link.close()


def table(found: dict[str, float]) -> str:
    """The results as Markdown."""
    lines = ["| of `shoal[edge]` in an environment of its own | |", "|---|---|"]
    lines.append(f"| distributions | {found['distributions']:.0f} |")
    lines.append(f"| site-packages, MB | {found['site_packages_mb']:.0f} |")
    lines.append(f"| resident memory of a client that waits, MB | {found['idle_rss_mb']:.0f} |")
    lines.append(f"| from the start of the process to its check-in, s | {found['start_s']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description="What the client takes of a board.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    found = footprint(chosen.environment)
    keep(
        found,
        chosen.out,
        OUT,
        "footprint",
        f"## What the client takes of a board\n\n{table(found)}",
    )
    print(table(found))


if __name__ == "__main__":
    main()
