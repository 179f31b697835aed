"""Folder with all that Mosquitto needs to serve a fleet with TLS (deploy/mosquitto).

It has the configuration, the certificate and the access list.
"""

import getpass
import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

from aggregator.enrolment.authority import Authority, renew_server
from host.files import file_error, make_folder, write_atomically
from wire.errors import ConfigError
from wire.identity.certificates import certificate_pem, read_tls_key
from wire.identity.keys import private_pem
from wire.topics import mosquitto_acl

CONFIGURATION = """\
# Mosquitto for a Shoal fleet: TLS, one certificate per device whose common name is the device's id,
# sessions on disk. The broker takes a client's user name and client id from its certificate's
# common name: nobody can end another client's connection or take over its session.
per_listener_settings false
persistence true
persistence_location {data}/
autosave_interval 60
# Maximum queue of one client: a whole fleet may check in while the aggregator is away.
max_queued_messages 100000
max_queued_bytes 536870912
message_size_limit 67108864
persistent_client_expiration 7d

listener {port}
cafile {certs}/ca.pem
certfile {certs}/broker.pem
keyfile {certs}/broker.key
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {acl}
"""
"""Mosquitto's configuration without the plugin."""
PLUGIN = """\
# By this plugin a service bans devices; it knows banned devices alone.
plugin {plugin}
plugin_opt_config_file {data}/dynamic-security.json
"""
PLUGIN_NAME = "mosquitto_dynamic_security.so"


def make_broker_folder(
    authority: Authority,
    folder: Path,
    hosts: Sequence[str],
    port: int,
    now_s: float,
    plugin: Path | None = None,
) -> bool:
    """Write all that Mosquitto needs into a folder, and return True if it can ban devices.

    `mosquitto -c FOLDER/mosquitto.conf` starts the broker. It can ban devices with its plugin for
    dynamic security. `plugin`: path of that plugin, for a broker elsewhere or in a container. If
    None, it is searched for on this machine.

    Raises:
        ConfigError: a file cannot be written.
    """
    folder, plugin = folder.absolute(), plugin or find_plugin()
    data, acl = folder / "data", folder / "shoal.acl"
    text = CONFIGURATION.format(certs=folder, data=data, acl=acl, port=port)
    text += f"user {broker_user(folder)}\n"
    try:
        make_folder(data)
        write_atomically(folder / "ca.pem", certificate_pem(authority.certificate).encode())
        write_atomically(acl, mosquitto_acl(authority.fleet).encode(), 0o600)
        renew_broker(authority, folder, now_s, hosts)
        if plugin is not None:
            text += PLUGIN.format(plugin=plugin, data=data)
            if not (data / "dynamic-security.json").exists():
                write_atomically(data / "dynamic-security.json", b"{}\n", 0o600)
        write_atomically(folder / "mosquitto.conf", text.encode())
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, broker_user(folder))
    except OSError as error:
        raise ConfigError(file_error(error.filename or folder, error)) from None
    return plugin is not None


def renew_broker(
    authority: Authority, folder: Path, now_s: float, hosts: Sequence[str] = ()
) -> bool:
    """Make or renew the broker's certificate where it is due, and return True if it was written.

    Mosquitto reads a new certificate after SIGHUP.

    Raises:
        OSError: a file cannot be written.
        Malformed: the file is not a key with its certificate.
    """
    pair = folder / "broker.pem"
    is_renewed = renew_server(authority, pair, now_s, hosts)
    if is_renewed or not (folder / "broker.key").exists():
        key = read_tls_key(pair.read_bytes())
        write_atomically(folder / "broker.key", private_pem(key), 0o600)
    return is_renewed


def broker_user(folder: Path) -> str:
    """Return the name of Mosquitto's user.

    If root starts Mosquitto, it runs as ``mosquitto`` if that user exists and can reach the folder,
    else as root. Otherwise it runs as the present user.
    """
    if os.geteuid() != 0:
        return getpass.getuser()
    reachable = all(path.stat().st_mode & 0o001 for path in folder.parents)
    try:
        pwd.getpwnam("mosquitto")
    except KeyError:
        return "root"
    return "mosquitto" if reachable else "root"


def find_plugin() -> Path | None:
    """Return the path of Mosquitto's plugin for dynamic security, or None if it is not found."""
    places = (Path("/usr/lib"), Path("/usr/local/lib"), Path("/usr/lib64"))
    patterns = (
        PLUGIN_NAME,
        f"*/{PLUGIN_NAME}",
        f"*/mosquitto/{PLUGIN_NAME}",
        f"mosquitto/{PLUGIN_NAME}",
    )
    return next(
        (path for place in places for pattern in patterns for path in place.glob(pattern)), None
    )
