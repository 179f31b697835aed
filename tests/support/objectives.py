"""Objectives by name, alone and wrapped as the papers do."""

from algorithms.objectives.supervised import Supervised
from algorithms.registry import CHOICES

OBJECTIVES: dict[str, type[Supervised]] = {
    **CHOICES["objective"],
    **dict.fromkeys(("dbe", "mr", "prbm"), CHOICES["objective"]["fedavg"]),
    **{
        f"{name}+{'dbe' if 'prbm' in objective.wrapped_by else 'mr'}": objective
        for name, objective in CHOICES["objective"].items()
        if objective.wrapped_by and name != "fedavg"
    },
}
