"""Build of the native engine at its first use, and the message if it cannot be built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from host.compiler import CannotCompile
from host.native import library
from host.native.plan import available_targets


def test_without_a_compiler_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(CannotCompile, match="is not a program"):
        library.load_library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotCompile, match="none of"):
        library.load_library()
    broken = tmp_path / "broken"
    broken.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 1.0;; *) echo 'error: no header' >&2; exit 1;; "
        "esac\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CannotCompile, match="broken failed: error: no header"):
        library.load_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(broken))
    with pytest.raises(CannotCompile, match="cannot be built in"):
        library.load_library()
    assert not list(tmp_path.glob("**/*.so"))


@pytest.mark.slow
def test_processes_build_at_the_same_time(tmp_path: Path) -> None:
    program = "from host.native.plan import available_targets; print(*available_targets())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = {process.communicate()[0] for process in running}
    assert said == {" ".join(available_targets()) + "\n"}
    assert [path.suffix for path in (tmp_path / "shoal" / "native").iterdir()] == [".so"]
