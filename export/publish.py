"""Publishes an objective: a signed bundle, checked against eager torch, and the probe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorithms.build import probe_of
from algorithms.core.probe import whole_model
from algorithms.objectives.supervised import Supervised
from export.bundle import MAX_BATCH, capture_graphs, make_bundle, save_probe
from export.parity import Parity, check_parity
from export.runtimes import ONNX
from host.files import file_error, write_atomically
from host.threads import one_thread
from wire.arrays.tensors import Array
from wire.bundle import Bundle, Window, unpack
from wire.errors import BundleError, ConfigError
from wire.identity.keys import PrivateKey, new_key, private_pem, public_pem, read_private

DEVICE_FILE, SERVER_FILE, TRUST_FILE, KEY_FILE = (
    "device.shoal",
    "server.pt2",
    "trust.pem",
    "signing.key",
)
"""Files of a bundle's folder.

They are the bundle for devices, the probe for the aggregator, the public key for devices, and the
signing key.
"""


@dataclass(frozen=True)
class Publication:
    """A published objective.

    It has the bundle as devices will read it, the aggregator's probe, the public key that devices
    trust (PEM), and the result of the parity check.
    """

    bundle: Bundle
    probe: bytes
    trust: bytes
    parity: Parity

    def write(self, folder: Path, key: PrivateKey | None = None) -> None:
        """Write `DEVICE_FILE`, `SERVER_FILE` and `TRUST_FILE` into a folder.

        A signing key is written into `KEY_FILE`, which only its user may read.

        Raises:
            ConfigError: a file cannot be written.
        """
        files = {SERVER_FILE: self.probe, TRUST_FILE: self.trust, DEVICE_FILE: self.bundle.payload}
        try:
            if key is not None:
                write_atomically(folder / KEY_FILE, private_pem(key), mode=0o600)
            for name, payload in files.items():
                write_atomically(folder / name, payload)
        except OSError as error:
            raise ConfigError(file_error(f"bundle folder {folder}", error)) from None


def publish(
    objective: Supervised,
    window: Window,
    classes: tuple[str, ...],
    sample: tuple[Array, Array],
    key: PrivateKey,
    *,
    name: str,
    version: int = 1,
    runtimes: Sequence[str] = (ONNX,),
    max_batch: int = MAX_BATCH,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Publication:
    """Export every graph of an objective, sign the bundle, and compare it with eager torch.

    Args:
        objective: the objective with its model.
        window: shape, channels and rate of an example.
        classes: names of the classes.
        sample: examples x (n, \\*window) float32 and labels y (n, \\*label) for the comparison.
        key: the signing key.
        name: name of the bundle.
        version: version number of the bundle.
        runtimes: runtimes to export graphs for (`export.bundle.RUNTIMES`).
        max_batch: maximum number of examples in a batch of an ExecuTorch program.
        on_progress: called with the next step.

    Raises:
        ConfigError: a layer or operator of the model cannot be exported; the text names it.
        ParityError: an exported graph differs from eager torch.
    """
    with one_thread():
        graphs = capture_graphs(objective, window.shape, runtimes, max_batch, on_progress)
        payload = make_bundle(
            graphs,
            name=name,
            bundle_version=version,
            objective=objective,
            classes=classes,
            window=window,
            key=key,
        )
        bundle = unpack(payload, (key.public_key(),))
        on_progress("running every graph beside eager torch")
        parity = check_parity(bundle, objective, *sample)
        on_progress("writing the aggregator's probe")
        probe = save_probe(
            probe_of(objective, window.shape), whole_model(objective.model), bundle.digest
        )
    return Publication(bundle, probe, public_pem(key), parity)


def read_key(path: Path) -> PrivateKey:
    """Return the signing key of a PEM file.

    Raises:
        ConfigError: the file cannot be read.
        BundleError: it has no Ed25519 private key.
    """
    try:
        return read_private(path.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"signing key {path}", error)) from None
    except BundleError:
        raise BundleError(
            f"signing key {path} is not an Ed25519 private key in PEM, as `shoal export` writes it"
        ) from None


def own_key(folder: Path) -> PrivateKey:
    """Return the signing key of a bundle's folder, or a new one if the folder has none.

    A new key is not written.

    Raises:
        ConfigError: the file cannot be read.
        BundleError: it has no Ed25519 private key.
    """
    path = folder / KEY_FILE
    return read_key(path) if path.exists() else new_key()
