"""Each extra by itself installs what its commands need: the wheel, in a fresh environment, on a
machine without the checkout.

An environment takes half a minute once uv has its packages in the cache; the longest test is that
of ExecuTorch, three minutes on a busy machine. pytest prints the time of each.
"""

import sys
import textwrap
from pathlib import Path

import pytest

from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from tests.support.bundles import Exported
from tests.support.installed import Install, run_a_round
from tests.support.postgres import Postgres
from tests.support.s3 import BUCKET, S3Server
from tests.support.wheel import PROJECT, ROOT

EDGE = [sys.executable, "-m", "edge_client.main"]
PROGRAMS: dict[str, tuple[str, str, str]] = {
    "pandas": (
        "simulation",
        """
        import shoal
        print(shoal.simulate({recordings!r}, rounds=1, algorithm="fedavg").accuracies.columns[0])
        """,
        "device",
    ),
    "parquet": (
        "edge",
        """
        from pathlib import Path
        from pyarrow import parquet, table
        from edge_client.data.tables.parts import parts_of
        parquet.write_table(table({{"ax": [1.5], "label": ["walk"]}}), "walk.parquet")
        for part in parts_of(Path("walk.parquet")):
            print({{name: column.tolist() for name, column in part.columns.items()}})
        """,
        "{'ax': [1.5], 'label': ['walk']}",
    ),
    "tensorboard": (
        "simulation",
        """
        from pathlib import Path
        import shoal
        board = shoal.TensorBoard("logs")
        shoal.simulate({recordings!r}, rounds=1, algorithm="fedavg", callbacks=[board])
        print(*Path("logs").iterdir())
        """,
        "events.out.tfevents",
    ),
    "mlflow": (
        "simulation",
        """
        import mlflow, shoal
        mlflow.set_tracking_uri("sqlite:///runs.db")
        with mlflow.start_run() as run:
            shoal.simulate({recordings!r}, rounds=1, algorithm="fedavg", callbacks=[shoal.MLflow()])
        print(sorted(mlflow.get_run(run.info.run_id).data.metrics))
        """,
        "accuracy_mean",
    ),
    "wandb": (
        "simulation",
        """
        import os
        os.environ["WANDB_MODE"] = "offline"
        import shoal
        shoal.simulate({recordings!r}, rounds=1, algorithm="fedavg", callbacks=[shoal.WandB()])
        print(any(name.startswith("offline-run") for name in os.listdir("wandb")))
        """,
        "True",
    ),
    "otel": (
        "aggregator",
        """
        import os
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://localhost:4318"
        from aggregator.http.monitoring.otlp import check_export
        print(check_export())
        """,
        "None",
    ),
    "sweep": (
        "simulation",
        """
        import runpy, shoal
        sweep = runpy.run_path({sweep!r})["sweep"]
        print(sorted(sweep(shoal.load({recordings!r}), trials=2, rounds=1).best_params))
        """,
        "['algorithm', 'local_epochs', 'lr']",
    ),
    "docs": (
        "",
        """
        import material, mkdocs, mkdocstrings
        from shoal.cli import COMMANDS, application
        print(len([application(name) for name in COMMANDS]) == len(COMMANDS))
        """,
        "True",
    ),
    "dev": (
        "",
        """
        import hypothesis, importlinter, jsonschema, moto, mypy, pytest, ruff
        import schemathesis, trustme, xdist
        import shoal
        print(shoal.simulate({recordings!r}, rounds=1, algorithm="fedavg").summary.algorithm)
        """,
        "fedavg",
    ),
}
"""Another extra that each extra needs, a program that needs it, and the program's output, by extra.

Other extras have a test of their own."""
OWN_TESTS = {"edge", "aggregator", "export", "simulation", "executorch", "postgres", "s3", "ray"}


def test_every_extra_is_tried() -> None:
    assert OWN_TESTS | PROGRAMS.keys() == PROJECT["project"]["optional-dependencies"].keys()
    assert not OWN_TESTS & PROGRAMS.keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", PROGRAMS)
def test_extra_does_what_it_is_for(extra: str, install: Install, recordings: str) -> None:
    base, program, printed = PROGRAMS[extra]
    desk = install(f"{base},{extra}" if base else extra)
    written = textwrap.dedent(program).format(
        recordings=recordings, sweep=str(ROOT / "examples" / "sweep.py")
    )
    assert printed in desk.succeeds("python", "-c", written)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executorch_extra_exports_programs_for_phones(install: Install, recordings: str) -> None:
    desk = install("export,executorch")
    desk.succeeds(
        "shoal",
        "export",
        "--data",
        recordings,
        "--algorithm",
        "fedavg",
        "--runtimes",
        "onnx,executorch",
        "--out",
        "own",
    )
    assert "executorch" in desk.succeeds("shoal", "export", "inspect", "own")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_extra_simulates_on_a_cluster(install: Install, recordings: str) -> None:
    desk = install("simulation,ray")
    words = (
        "--algorithm",
        "fedavg",
        "--rounds",
        "1",
        "--cluster",
        "local",
        "--workers",
        "1",
        "--out",
        "out",
    )
    desk.succeeds("shoal", "simulate", "--data", recordings, *words)
    assert (desk.folder / "out" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_postgres_extra_serves_a_round_from_a_server(
    install: Install, fleet: FleetData, exported: Exported, postgres: Postgres, tmp_path: Path
) -> None:
    server = install("aggregator,postgres")
    log = run_a_round(
        fleet,
        exported,
        tmp_path,
        server.command("shoal"),
        EDGE,
        "--database",
        postgres.create("extras"),
    )
    assert "Campaign finished: campaign=run-1 " in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_s3_extra_serves_a_round_with_blobs_in_a_bucket(
    install: Install, fleet: FleetData, exported: Exported, s3: S3Server, tmp_path: Path
) -> None:
    server = install("aggregator,s3")
    log = run_a_round(
        fleet, exported, tmp_path, server.command("shoal"), EDGE, "--blobs", f"s3://{BUCKET}/extras"
    )
    assert "Campaign finished: campaign=run-1 " in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_edge_extra_trains_without_torch_and_says_which_extra_another_command_needs(
    install: Install, fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    board = install("edge")
    assert [name for name in ("torch", "typer", "scipy", "onnx") if board.has(name)] == []
    assert "--trust" in board.succeeds("shoal-edge", "run", "--help")
    assert (
        board.fails("simulate")
        == "error: shoal simulate needs the package typer: pip install 'shoal[simulation]'"
    )
    refused = board.run("python", "-c", "import shoal; shoal.simulate")
    assert refused.stderr.splitlines()[-1].startswith(
        "ImportError: shoal.simulate needs the package "
    ), refused.stderr
    assert (
        board.fails("serve", "--help")
        == "error: shoal serve needs the package typer: pip install 'shoal[aggregator]'"
    )
    log = run_a_round(
        fleet, exported, tmp_path, [sys.executable, "-m", "shoal"], board.command("shoal-edge")
    )
    assert "Campaign finished: campaign=run-1 " in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_aggregator_extra_serves_a_round_with_noise(
    install: Install, fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    server = install("aggregator")
    assert not server.has("sklearn")
    assert "--min-devices" in server.succeeds("shoal", "serve", "--help")
    assert "distfl" in server.succeeds("shoal", "algorithms")
    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    line = server.fails(
        "serve", "--folder", "nowhere", "--bundle", str(exported.folder), "--broker", nowhere
    )
    assert line.startswith(f"error: broker {nowhere}")
    log = run_a_round(
        fleet,
        exported,
        tmp_path,
        server.command("shoal"),
        EDGE,
        "--algorithm",
        "fedavg",
        "--privacy",
        "gaussian",
    )
    assert "Campaign finished: campaign=run-1 " in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_export_extra_exports_files_and_the_watches(install: Install, recordings: str) -> None:
    desk = install("export")
    assert [name for name in ("sqlalchemy", "matplotlib", "opacus") if desk.has(name)] == []
    for data, out in ((recordings, "own"), ("watch", "watch")):
        desk.succeeds("shoal", "export", "--data", data, "--out", out)
        assert "step" in desk.succeeds("shoal", "export", "inspect", out)
    assert desk.fails("serve", "--folder", "served").startswith(
        "error: shoal serve needs the package "
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_simulation_extra_simulates_a_round(install: Install, recordings: str) -> None:
    desk = install("simulation")
    desk.succeeds("shoal", "simulate", "--data", recordings, "--rounds", "1", "--out", "out")
    assert {"summary.json", "report.html"} <= {
        path.name for path in (desk.folder / "out").iterdir()
    }
    program = (
        f"import shoal; print(shoal.simulate({recordings!r}, rounds=1, "
        "algorithm='fedavg').save('models')[0].files)"
    )
    assert "group-0.onnx" in desk.succeeds("python", "-c", program)
    desk.succeeds(
        "shoal",
        "compare",
        "--data",
        recordings,
        "--algorithms",
        "fedavg,distfl",
        "--rounds",
        "1",
        "--out",
        "compared",
    )
    assert (desk.folder / "compared" / "compare.png").exists()
