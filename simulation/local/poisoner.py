"""A device that sends an attacker's updates: ``-m simulation.local.poisoner ATTACK SCALE run ...``.

The process is that of an honest device but for the updates, which the attack changes.
"""

import sys

import edge_client.main
from simulation.engine.workers.attacks import Attack, Attacker


def main() -> None:
    """Run `shoal-edge` with the arguments after the attack and its scale."""
    _, name, scale, *arguments = sys.argv

    class Poisoner(Attacker):
        attack = Attack(name, frozenset(), float(scale), {})

    edge_client.main.Agent = Poisoner  # type: ignore[attr-defined]
    sys.argv = ["shoal-edge", *arguments]
    edge_client.main.main()


if __name__ == "__main__":
    main()
