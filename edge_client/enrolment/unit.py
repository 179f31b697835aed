"""Systemd unit of an enrolled board: the unit of deploy/systemd with this board's paths."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from host.files import file_error, write_atomically
from wire.errors import ConfigError

PATH = Path("/etc/systemd/system/shoal-edge.service")
UNIT = """\
# The client of a board that `shoal-edge enrol` has enrolled. Its key stays in the state folder,
# which belongs to this unit's user alone.
[Unit]
Description=Shoal edge client
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
Environment=XDG_CACHE_HOME=/var/cache/shoal
ExecStart={program} run --data {data} --state {state}{enrolled}
# Status 3: another device uses this identity. A person has to decide which of the two goes on.
Restart=always
RestartSec=10
RestartPreventExitStatus=3
TimeoutStartSec=300
# The client reports that it is alive once a second, and between two batches; a batch may take
# minutes if a graph is loaded first.
WatchdogSec=600
DynamicUser=yes
StateDirectory=shoal
CacheDirectory=shoal
UMask=0077
Nice=10
CPUWeight=20

NoNewPrivileges=yes
CapabilityBoundingSet=
DevicePolicy=closed
LockPersonality=yes
PrivateDevices=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged

[Install]
WantedBy=multi-user.target
"""
STATE = Path("/var/lib/shoal")
"""Folder that the unit may write to. systemd gives everything in it to the unit's user."""


def unit(program: Path, data: Path, state: Path, enrolled: Path | None = None) -> str:
    """Return the text of the unit file."""
    return UNIT.format(
        program=program,
        data=data,
        state=state,
        enrolled=f" --enrolled {enrolled}" if enrolled else "",
    )


def check_install(state: Path, enrolled: Path | None) -> str:
    """Return the path of systemctl.

    Raises:
        ConfigError: the user is not root, there is no systemd, or a folder is outside `STATE`.
    """
    if os.geteuid() != 0:
        raise ConfigError("--install needs root; run it with sudo")
    if (systemctl := shutil.which("systemctl")) is None:
        raise ConfigError("--install needs systemd, which this machine does not have")
    for folder in (state, *([enrolled] if enrolled else [])):
        if STATE not in folder.absolute().parents:
            raise ConfigError(f"--install: the unit can write only below {STATE}, got {folder}")
    return systemctl


def install(state: Path, enrolled: Path | None, data: Path) -> None:
    """Install the unit, start it now, and enable it at every boot.

    Raises:
        ConfigError: as `check_install`, or the unit file cannot be written, or systemctl fails.
    """
    systemctl = check_install(state, enrolled)
    program = Path(sys.argv[0]).absolute()
    try:
        write_atomically(
            PATH,
            unit(
                program,
                data.absolute(),
                state.absolute(),
                enrolled.absolute() if enrolled else None,
            ).encode(),
        )
    except OSError as error:
        raise ConfigError(file_error(f"--install: {PATH}", error)) from None
    for words in (["daemon-reload"], ["enable", "--now", PATH.name], ["restart", PATH.name]):
        process = subprocess.run([systemctl, *words], capture_output=True, text=True)
        if process.returncode:
            raise ConfigError(
                f"--install: systemctl {' '.join(words)}: "
                f"{process.stderr.strip() or process.returncode}"
            )
    print(f"{PATH} is installed and started: journalctl -u shoal-edge")
