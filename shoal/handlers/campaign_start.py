"""`shoal campaign start`: another campaign for a fleet."""

import secrets
from pathlib import Path
from typing import Any

from aggregator.leadership.identity import is_served
from aggregator.operator.desk import submit
from aggregator.service.orders import Start
from aggregator.service.start import read_exported, read_trust
from aggregator.service_settings import CampaignSettings, run_settings
from aggregator.storage.charter import Charter, charters, check_campaign_name, is_proposed, propose
from shoal.handlers.campaign_settings import campaign_fields
from wire.errors import ConfigError


def start(folder: Path, name: str, bundle: Path, **others: Any) -> None:
    """Carry out `shoal campaign start`; `others` are those of `campaign_fields`."""
    if not folder.is_dir():
        raise ConfigError(
            f"folder {folder}: there is no such folder; `shoal serve --folder` makes it"
        )
    settings = CampaignSettings(
        run=check_campaign_name(name), **campaign_fields({**others, "bundle": bundle})
    )
    exported = read_exported(bundle, read_trust(bundle))
    if name in charters(folder):
        raise ConfigError(
            f"campaign {name}: there is one of this name in {folder}; `shoal campaign set` "
            "changes it"
        )
    if is_proposed(folder, name) and not is_served(folder):
        raise ConfigError(
            f"campaign {name}: it is to start already, when `shoal serve` has the folder {folder}"
        )
    made = run_settings(settings, exported.bundle, secrets.token_hex(16))
    propose(folder, Charter(0, made, start_from=others["start_from"]), bundle)
    print(submit(folder, Start(name)))
