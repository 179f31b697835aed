"""Cost of a client in C++ beside `shoal-edge`: ``python -m benchmarks.cpp_client``.

The prototype in `benchmarks/cpp_client` carries out plans of training and evaluation on the real
wire. It is no client: `benchmarks.client_parts` lists the parts that it lacks. Each client has a
fleet of its own (`benchmarks.client_campaign`). Clients take turns. Writes
``benchmarks/results/cpp_client.json`` and its section of ``benchmarks/RESULTS.md``.
"""

import argparse
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.board import import_all
from benchmarks.client_campaign import DEVICE, EPOCHS, FLEET, ROUNDS, Campaign, run_shoal
from benchmarks.client_parts import (
    MQTT,
    RECORDINGS,
    SECRET,
    TESTS,
    count_lines,
    lines_of_parts,
    parts_table,
)
from benchmarks.results.report import describe_machine, keep
from export.publish import DEVICE_FILE
from host.compiler import CannotCompile, compile_all, find_compiler
from host.executorch.build import SOURCES as INTERFACE
from host.executorch.build import build, find_executorch
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import select_devices
from simulation.local.fleet import write_device_folder
from wire.bundle import EXECUTORCH as XNNPACK
from wire.bundle import Manifest, unpack

OUT = Path(__file__).parent / "results" / "cpp_client.json"
SOURCES, PROGRAM = Path(__file__).parent / "cpp_client", "shoal-prototype"
HEADERS = {
    "mosquitto.h": "libmosquitto-dev",
    "nlohmann/json.hpp": "nlohmann-json3-dev",
    "openssl/evp.h": "libssl-dev",
}
"""Headers that the prototype includes, and Debian's packages with them."""
ONNX, EXECUTORCH, PROTOTYPE, SMALL = (
    "`shoal-edge`, onnxruntime",
    "`shoal-edge`, ExecuTorch",
    "prototype in C++, ExecuTorch",
    "the same, programs for batches of 32",
)
MAX_BATCH = {ONNX: 64, EXECUTORCH: 64, PROTOTYPE: 64, SMALL: 32}
"""Each client, and the largest batch of the programs in its bundle: `shoal export` makes 64."""


def missing_packages() -> list[str]:
    """Return Debian's packages that the prototype needs and this machine lacks."""
    folders = "/usr/include", "/usr/local/include", "/usr/include/x86_64-linux-gnu"
    return [
        package
        for header, package in HEADERS.items()
        if not any((Path(folder) / header).exists() for folder in folders)
    ]


def compile_prototype(folder: Path) -> Path:
    """Return the path of the compiled prototype.

    Raises:
        CannotCompile: a package of Debian, ExecuTorch or the compiler is missing, or the compiler
            fails.
    """
    if missing := missing_packages():
        raise CannotCompile(
            f"the prototype needs Debian's {', '.join(missing)}; install them with "
            f"deploy/install-debian {' '.join(missing)}"
        )
    library, program = build(), folder / PROGRAM
    runtime = f"-Wl,-rpath-link,{find_executorch()[0] / 'lib'}"
    flags = ["-std=c++17", "-O2", "-s", "-Wall", f"-I{INTERFACE}"]
    links = [f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", runtime]
    links += ["-lshoal_executorch", "-lmosquitto", "-lcrypto"]
    source = str(SOURCES / "client.cpp")
    compile_all(find_compiler()[0], [[*flags, source, *links, "-o", str(program)]])
    return program


def command_of(name: str, campaign: Campaign, prototype: Path, windows: Path) -> list[str]:
    """Return the command of a client for a campaign's device."""
    state = campaign.folder / "state"
    if name in (PROTOTYPE, SMALL):
        words = [prototype, "localhost", campaign.port, FLEET, DEVICE, campaign.authority]
        return [*map(str, words), *map(str, (campaign.pair, campaign.trust, windows, state))]
    options = ["--id", DEVICE, "--data", windows, "--state", state, "--trust", campaign.trust]
    options += ["--broker", campaign.url, "--ca", campaign.authority, "--cert", campaign.pair]
    if name == EXECUTORCH:
        options += ["--runtime", "executorch", "--library", build()]
    return [sys.executable, "-m", "edge_client.main", "run", *map(str, options)]


def planned_mb(manifest: Manifest) -> float:
    """Return the memory that ExecuTorch plans for the programs of a plan."""
    programs = (manifest.graphs[graph].programs[XNNPACK] for graph in ("step", "evaluate"))
    return sum(program.memory_bytes for program in programs) / 1e6


def measure(turns: int) -> dict[str, Any]:
    """Return the costs of every client in each turn, and the sizes of the prototype."""
    campaigns: dict[str, list[dict[str, Any]]] = {name: [] for name in MAX_BATCH}
    planned: dict[str, float] = {}
    import_all()  # so that all modules are compiled
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prototype = compile_prototype(folder)
        for most in sorted({*MAX_BATCH.values()}):
            options = ["--data", "watch", "--algorithm", "fedavg", "--max-batch", most]
            options += ["--runtimes", "onnx,executorch", "--out", folder / f"bundle-{most}"]
            run_shoal("export", *options)
            manifest = unpack((folder / f"bundle-{most}" / DEVICE_FILE).read_bytes()).manifest
            planned[str(most)] = planned_mb(manifest)
        data = select_devices(load_data("watch"), 1)
        device, windows = next(iter(data.devices.items()))
        write_device_folder(data, device, folder / "data")
        for turn in range(turns):
            for number, (client, most) in enumerate(MAX_BATCH.items()):
                place = folder / f"{turn}-{number}"
                place.mkdir()
                with closing(Campaign(place, folder / f"bundle-{most}")) as campaign:
                    command = command_of(client, campaign, prototype, folder / "data")
                    costs = campaign.measure(command)
                campaigns[client].append(costs)
        return {
            "machine": describe_machine(),
            "load": os.getloadavg()[0],
            "turns": turns,
            "planned_mb": planned,
            "windows": len(windows.train_y),
            "program_mb": prototype.stat().st_size / 1e6,
            "prototype_lines": sum(count_lines(path) for path in SOURCES.iterdir()),
            "kotlin_lines": lines_of_parts(),
            "kotlin_test_lines": sum(map(count_lines, TESTS.rglob("*.kt"))),
            "campaigns": campaigns,
        }


def memory_table(campaigns: dict[str, list[dict[str, Any]]]) -> str:
    """Return the median memory of each client over turns, as Markdown."""
    lines = [
        "| client | shared libraries, MB (ExecuTorch's) | at rest: RSS, MiB | PSS "
        "| peak (VmHWM) | after training: RSS | PSS | peak (VmHWM) |",
        "|" + "---|" * 8,
    ]
    for name, turns in campaigns.items():
        libraries = turns[0]["libraries"]
        cells = [f"{libraries['mb']:.1f} ({libraries['executorch_mb']:.1f})"]
        cells += [
            f"{median(turn[stage][kind] for turn in turns):.1f}"
            for stage in ("rest", "training")
            for kind in ("rss", "pss", "peak")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_table(campaigns: dict[str, list[dict[str, Any]]]) -> str:
    """Return the median (and least) times of each client over turns, as Markdown."""
    lines = [
        "| client | start to check-in, s | first round, s | a later round, s "
        "| processor in a round, s | mean loss in the last round |",
        "|" + "---|" * 6,
    ]
    for name, turns in campaigns.items():
        columns = (
            [turn["start_s"] for turn in turns],
            [turn["rounds"][0]["seconds"] for turn in turns],
            [entry["seconds"] for turn in turns for entry in turn["rounds"][1:]],
            [turn["processor_s"] / len(turn["rounds"]) for turn in turns],
        )
        cells = [f"{median(values):.2f} ({min(values):.2f})" for values in columns]
        cells.append(f"{median(turn['rounds'][-1]['loss'] for turn in turns):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def text(results: dict[str, Any]) -> str:
    """Return the section of the page of results."""
    kotlin, campaigns = results["kotlin_lines"], results["campaigns"]
    further = kotlin[SECRET] + kotlin[RECORDINGS]
    rest = sum(kotlin.values()) - kotlin[MQTT] - further
    planned = " or ".join(f"{mb:.1f} MB for {most}" for most, mb in results["planned_mb"].items())
    paragraphs = [
        "## A client in C++",
        f"Machine: {results['machine']}, load {results['load']:.1f}. The prototype in "
        f"`benchmarks/cpp_client` has {results['prototype_lines']} lines and is not shipped. Each "
        "client has a fleet of its own, with `shoal init`, Mosquitto with TLS and certificates, "
        f"`shoal serve`, and one device with {results['windows']} windows of a watch. A campaign "
        f"has {ROUNDS} rounds of {EPOCHS} epochs in batches of 32. The service acknowledged every "
        f"update. Medians of {results['turns']} turns; times in brackets are the shortest. Other "
        "work ran on the machine, so the processor's time says more than the clock.",
        memory_table(campaigns),
        f"The executable has {results['program_mb']:.2f} MB. It links libmosquitto and "
        "libcrypto of Debian, and the library of `make native`; nlohmann's JSON is headers alone. "
        "So besides Debian's libraries, a board needs this executable and ExecuTorch's libraries. "
        "`shoal-edge` needs Python and [its packages](#what-the-client-takes-of-a-board). RSS is "
        "nearer to a board of its own than PSS, which divides libraries among a machine's "
        "processes: here, the broker and the service use some of the same. Of the memory in "
        "training, ExecuTorch reserves for its largest batch (`shoal export --max-batch`) "
        f"{planned} windows. What the rest consists of was not measured.",
        time_table(campaigns),
        "A round runs from the plan to the update at the broker. The first one includes the "
        "bundle, the model, their checks and the loading of programs. The processor's time is that "
        "of the whole client, from before the service starts. `shoal-edge` does more in it: it "
        "stores plans, updates and checkpoints, and waits for the disk. The prototype writes "
        "blobs, programs and its update without waiting. Its batches have another order, so its "
        "loss differs. The benchmark, not an enrolment, makes the prototype's certificate.",
        "**Size of a whole client, by the Kotlin core**, which has all parts below. It has "
        f"{sum(kotlin.values()):,} lines: {kotlin[MQTT]:,} for MQTT, for which there is a library "
        f"in C++; {further:,} for {SECRET}, and {RECORDINGS}; and {rest:,} for the rest. Its tests "
        f"have {results['kotlin_test_lines']:,}. C++ has no memory safety: an early version of the "
        "prototype crashed at its first plan, over a reference to a temporary value. So a client "
        "in C++ has to pass `wire/vectors`, hostile files included, in a build with sanitizers.",
        parts_table(kotlin),
    ]
    return "\n\n".join(paragraphs)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description="What a client in C++ takes.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    try:
        results = measure(chosen.turns)
    except CannotCompile as error:
        raise SystemExit(f"error: {error}") from None
    keep(results, chosen.out, OUT, "cpp-client", text(results))
    print(text(results))
    return results


if __name__ == "__main__":
    main()
