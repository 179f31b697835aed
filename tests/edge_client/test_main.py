"""The program `shoal-edge`: it loads no torch, and an error is one line."""

import subprocess
import sys
from pathlib import Path


def test_importing_the_client_loads_no_torch() -> None:
    code = (
        "import sys, edge_client.main; "
        "print([n for n in ('torch', 'onnx', 'sklearn', 'scipy', 'sqlalchemy', 'fastapi', "
        "'matplotlib') if n in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_command_line_errors_are_one_line_and_status_2(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "run",
        "--id",
        "d",
        "--data",
        str(tmp_path / "none"),
        "--state",
        str(tmp_path / "s"),
        "--insecure",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: data folder")
    assert "Traceback" not in done.stderr
