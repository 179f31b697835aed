"""A service and its devices as processes, with three helpers in secret mode."""

from simulation.local.fleet import LocalFleet
from simulation.local.secret import SecretParties
from tests.end_to_end.field import Field
from wire.identity.keys import read_private


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

    def edges(self) -> LocalFleet:
        fleet = super().edges()
        if self.parties is not None:
            fleet.edge_options = self.parties.options
        return fleet
