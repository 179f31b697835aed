"""A real PostgreSQL in a folder of its own, for tests: Debian's package, run as a user who is not
root."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sql

from simulation.local.broker import free_port
from tests.support.brokers import wait_for_port


def programs() -> Path:
    """The folder of PostgreSQL's programs; the test is skipped where there is none."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not versions and not on_path:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql would run this")
    return (versions[-1] if versions else Path(str(on_path)).resolve()).parent


def own_user() -> str | None:
    """The user as whom PostgreSQL runs, which refuses root; None for the one who runs the tests."""
    return "nobody" if os.geteuid() == 0 else None


@dataclass
class Postgres:
    """A server on a loopback port, which trusts whoever connects."""

    folder: Path
    port: int

    def create(self, name: str) -> str:
        """The URL of a new, empty database."""
        engine = sql.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sql.text(f'CREATE DATABASE "{name}"'))
        engine.dispose()
        return self.url(name).replace("+psycopg", "")

    def url(self, name: str) -> str:
        """A database's URL, with its driver."""
        return f"postgresql+psycopg://shoal@127.0.0.1:{self.port}/{name}"

    def do(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to its end."""
        command = [str(programs() / program), "-D", str(self.folder), *arguments]
        quiet = subprocess.DEVNULL  # a pipe would stay open in the server
        result = subprocess.run(
            command, user=own_user(), cwd="/", stdout=quiet, stderr=quiet, stdin=quiet, timeout=60
        )
        assert result.returncode == 0, f"{command}: {self.log()}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = (
            f"-c port={self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c "
            "max_connections=40"
        )
        self.do("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")
        wait_for_port(self.port)

    def stop(self, how: str = "immediate") -> None:
        """Stop the server: ``immediate`` is a crash, after which it recovers."""
        self.do("pg_ctl", "-w", "-m", how, "stop")

    def kill(self) -> None:
        """Kill the server and everything that it started, and wait until it is gone: another would
        not start beside it."""
        process = psutil.Process(self.pid())
        process.kill()
        process.wait(60)

    def pid(self) -> int:
        """The server's first process."""
        return int((self.folder / "postmaster.pid").read_text().split()[0])

    def log(self) -> str:
        """Return the server's log."""
        path = self.folder / "log"
        return path.read_text()[-2000:] if path.exists() else ""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Postgres]:
    """A new server in a folder that is there."""
    if (user := own_user()) is not None:
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    server = Postgres(folder / "data", free_port())
    server.do("initdb", "--auth=trust", "--username=shoal", "--encoding=UTF8", "--no-locale")
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop()


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A temporary folder that other users may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(
        prefix="shoal-postgres-", ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the tests that leave it alone; each makes a database of its own."""
    programs()
    with elsewhere() as folder, running(folder) as server:
        yield server
