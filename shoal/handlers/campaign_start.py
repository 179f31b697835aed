"""`shoal campaign start`: another campaign for a fleet."""

import secrets
from pathlib import Path
from typing import Any

from aggregator.http.local import check_served, order
from aggregator.service.start import read_exported, read_trust
from aggregator.service_settings import CampaignSettings, run_settings
from aggregator.storage.charter import Charter, charters, check_campaign_name, propose
from shoal.handlers.campaign_settings import campaign_fields
from wire.errors import ConfigError


def start(folder: Path, name: str, bundle: Path, **others: Any) -> None:
    """Carry out `shoal campaign start`; `others` are those of `campaign_fields`."""
    check_served(folder)
    settings = CampaignSettings(
        run=check_campaign_name(name), **campaign_fields({**others, "bundle": bundle})
    )
    exported = read_exported(bundle, read_trust(bundle))
    if name in charters(folder):
        raise ConfigError(
            f"campaign {name}: there is one of this name in {folder}; `shoal campaign set` "
            "changes it"
        )
    made = run_settings(settings, exported.bundle, secrets.token_hex(16))
    propose(folder, Charter(0, made, start_from=others["start_from"]), bundle)
    print(order(folder, "campaigns", name, "start"))
