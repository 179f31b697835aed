"""Broker of a program by its options."""

import argparse

from host.loopback import is_loopback
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress


def address_of(options: argparse.Namespace, danger: str) -> BrokerAddress:
    """Return the address of the broker, with its certificates and login.

    `danger` is what can happen without TLS, for people.

    Raises:
        ConfigError: it is not an address, or the broker is on another machine and neither TLS nor
            `--insecure` is used.
    """
    address = BrokerAddress.parse(options.broker, options.ca, options.cert, options.key)
    address = address.login(options.broker_user, options.broker_password_file)
    if not address.tls and not is_loopback(address.host) and not options.insecure:
        raise ConfigError(
            f"broker {address}: without TLS, {danger}; use mqtts://, or --insecure for a trial"
        )
    return address
