"""The Ansible roles: Ansible reads them, ansible-lint finds nothing by its strictest rules, and
every file that they copy is there."""

import os
import re
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, TOOLS, run, tool

ANSIBLE = DEPLOY / "ansible"
PATH = f"{TOOLS}:{os.environ.get('PATH', '')}"


def test_ansible_reads_the_playbook() -> None:
    done = run(
        tool("ansible-playbook"),
        "-i",
        "hosts.ini",
        "site.yml",
        "--syntax-check",
        cwd=ANSIBLE,
        PATH=PATH,
        LC_ALL="C.UTF-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_ansible_lint_finds_nothing() -> None:
    done = run(
        tool("ansible-lint"),
        "--offline",
        "--profile",
        "production",
        "--strict",
        "site.yml",
        cwd=ANSIBLE,
        PATH=PATH,
        LC_ALL="C.UTF-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_a_role_copies_is_there() -> None:
    named = []
    for tasks in ANSIBLE.glob("roles/*/tasks/main.yml"):
        role = tasks.parents[1]
        places = re.findall(r'src: "\{\{ role_path \}\}/(.+)"', tasks.read_text())
        items = re.findall(r"loop: \[(shoal-update.+)\]", tasks.read_text())
        for place in places:
            names = items[0].split(", ") if "{{ item }}" in place else [""]
            named += [
                Path(os.path.normpath(role / place.replace("{{ item }}", name))) for name in names
            ]
        named += [
            role / "templates" / name
            for name in re.findall(r"src: (\w+\.conf\.j2)", tasks.read_text())
        ]
    assert len(named) >= 8
    assert [str(path) for path in named if not path.is_file()] == []
