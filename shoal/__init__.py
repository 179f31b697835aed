"""Federated learning for phones and edge boards, from Python (docs/python.md).

The command line is in `shoal.cli`. Names are loaded at their first use, so that `shoal --help` and
a board with `shoal[edge]` alone load no torch.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

PACKAGES = (
    "aggregator", "algorithms", "edge_client", "export", "host", "shoal", "simulation", "wire",
)  # fmt: skip
"""Names of Shoal's packages."""
for _package in PACKAGES:
    _place = getattr(find_spec(_package), "origin", None) or ""
    if not Path(_place).is_relative_to(Path(__file__).parents[1]):
        raise ImportError(
            f"{_place or _package} hides Shoal's package of that name. Give it another name: none "
            f"of {', '.join(PACKAGES)}"
        )

if TYPE_CHECKING:
    from shoal.api.callbacks import Callback, CsvLog, EarlyStopping, MLflow, TensorBoard, WandB
    from shoal.api.comparison import CompareProgress, Comparison, compare
    from shoal.api.data import load, validation
    from shoal.api.exporting import export
    from shoal.api.own_model import OwnModel
    from shoal.api.progress import Progress, RoundMetrics
    from shoal.api.result import Result
    from shoal.api.run import simulate
    from shoal.api.tables import Evaluation
    from simulation.contract.suite import check
    from simulation.datasets.windows import FleetData
    from simulation.engine.progress import STOP, Stop
    from wire.errors import ConfigError, DataError, ShoalError

__all__ = [
    "Callback",
    "CompareProgress",
    "Comparison",
    "ConfigError",
    "CsvLog",
    "DataError",
    "EarlyStopping",
    "Evaluation",
    "FleetData",
    "MLflow",
    "OwnModel",
    "Progress",
    "Result",
    "RoundMetrics",
    "STOP",
    "ShoalError",
    "Stop",
    "TensorBoard",
    "WandB",
    "check",
    "compare",
    "export",
    "load",
    "simulate",
    "validation",
]

_PLACES = {
    "shoal.api.callbacks": (
        "Callback",
        "CsvLog",
        "EarlyStopping",
        "MLflow",
        "TensorBoard",
        "WandB",
    ),
    "shoal.api.comparison": ("Comparison", "CompareProgress", "compare"),
    "shoal.api.data": ("load", "validation"),
    "shoal.api.exporting": ("export",),
    "shoal.api.own_model": ("OwnModel",),
    "shoal.api.progress": ("Progress", "RoundMetrics"),
    "shoal.api.result": ("Result",),
    "shoal.api.run": ("simulate",),
    "shoal.api.tables": ("Evaluation",),
    "simulation.contract.suite": ("check",),
    "simulation.datasets.windows": ("FleetData",),
    "simulation.engine.progress": ("STOP", "Stop"),
    "wire.errors": ("ConfigError", "DataError", "ShoalError"),
}

if not TYPE_CHECKING:  # a type checker would accept any name that __getattr__ answers

    def __getattr__(name):
        """Return the public object of this name, and import its module (PEP 562).

        Raises:
            AttributeError: `shoal` has no such name.
            ImportError: a package is not installed; the text names the extra that installs it.
        """
        place = next((module for module, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        import sys
        from importlib import import_module

        try:
            value = getattr(import_module(place), name)
        except ModuleNotFoundError as error:
            if (
                error.name is None or error.name.partition(".")[0] in sys.modules
            ):  # a part of an installed package is missing: no extra would help
                raise
            extra = "export" if name == "export" else "simulation"
            raise ImportError(
                f"shoal.{name} needs the package {error.name}: pip install 'shoal[{extra}]'",
                name=error.name,
            ) from None
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
