"""A service and its devices as processes, with three helpers in secret mode."""

from pathlib import Path

from aggregator.fleet.records import Campaign
from aggregator.storage.blob_folder import BlobFolder
from simulation.local.fleet import LocalFleet
from simulation.local.secret import SecretParties
from tests.end_to_end.field import RUN, Field
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors
from wire.identity.keys import read_private


def files_of(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.rglob("*") if file.is_file()]


class SecretField(Field):
    """A service with devices and, once they have begun, with three helpers in secret mode."""

    parties: SecretParties | None = None
    algorithm = "fedavg+uniform"
    rounds = 3

    def begin(self) -> SecretParties:
        """Make helpers and devices' keys."""
        self.parties = SecretParties(
            self.folder / "parties",
            "t",
            self.data.devices,
            lambda device_id: self.folder / "devices" / device_id / "state",
            read_private((self.exported.folder / "signing.key").read_bytes()),
            self.exported.folder / "trust.pem",
            self.broker_url,
            5,
        )
        return self.parties

    def serve_rounds(self, *more: str) -> None:
        usual = ["--algorithm", self.algorithm, "--rounds", str(self.rounds), "--deadline", "20"]
        if self.parties is not None:
            usual += ["--secret", "--helpers", str(self.parties.helpers)]
        self.serve(*usual, *more)

    def model(self, campaign: Campaign, key: str) -> Tensors:
        """A model of a campaign, from the service's blobs."""
        blobs = BlobFolder(self.folder / "run" / "blobs" / RUN)
        return decode_tensors(blobs.get(campaign.version.models[key]), OWN_FILES)[0]

    def edges(self) -> LocalFleet:
        fleet = super().edges()
        if self.parties is not None:
            fleet.edge_options = self.parties.options
        return fleet
