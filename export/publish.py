"""An objective -> what devices and the aggregator are given: a signed bundle that was checked
against eager torch, and the probe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorithms.build import probe_of
from algorithms.core.probe import whole_model
from algorithms.objectives.supervised import Supervised
from export.bundle import MAX_BATCH, capture_graphs, make_bundle, save_probe
from export.parity import Parity, check_parity
from export.runtimes import ONNX
from host.files import write_atomically
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
"""In a bundle's folder: the bundle for devices, the probe for the aggregator, the public key for
devices, the signing key."""


@dataclass(frozen=True)
class Publication:
    """A bundle as devices will read it, the aggregator's probe, the key that devices trust (PEM),
    and what the check found."""

    bundle: Bundle
    probe: bytes
    trust: bytes
    parity: Parity

    def write(self, folder: Path, key: PrivateKey | None = None) -> None:
        """Write `DEVICE_FILE`, `SERVER_FILE` and `TRUST_FILE` into a folder, and the signing key,
        where it is given, into `KEY_FILE`, which its user alone may read.

        Raises:
            ConfigError: they cannot be written.
        """
        files = {SERVER_FILE: self.probe, TRUST_FILE: self.trust, DEVICE_FILE: self.bundle.payload}
        try:
            if key is not None:
                write_atomically(folder / KEY_FILE, private_pem(key), mode=0o600)
            for name, payload in files.items():
                write_atomically(folder / name, payload)
        except OSError as error:
            raise ConfigError(f"bundle folder {folder}: {error.strerror}") from None


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
    """Export every graph of an objective, sign them as a bundle, and run them beside eager torch on
    a sample: examples x (n, \\*window) float32 and labels y (n, \\*label). `on_progress` is told
    what is being done.

    Raises:
        ConfigError: a layer or operator of the model cannot be exported; the text names it.
        ParityError: an exported graph does not do what eager torch does.
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
    """The signing key in a PEM file.

    Raises:
        ConfigError: the file cannot be read.
        BundleError: it holds no Ed25519 private key.
    """
    try:
        return read_private(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"signing key {path}: {error.strerror}") from None
    except BundleError:
        raise BundleError(
            f"signing key {path}: expected an Ed25519 private key in PEM, as `shoal export` "
            "writes it"
        ) from None


def own_key(folder: Path) -> PrivateKey:
    """The signing key of a bundle's folder; a new one, which is not written yet, where the folder
    has none.

    Raises:
        ConfigError: it cannot be read.
        BundleError: the file holds no Ed25519 private key.
    """
    path = folder / KEY_FILE
    return read_key(path) if path.exists() else new_key()
