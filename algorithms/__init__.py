"""The federated mathematics: no I/O, no clock, no hidden randomness. An algorithm is eight choices;
core/contract.py has the contracts of means and server optimizers, their folders those of the
others."""
