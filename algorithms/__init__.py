"""The federated mathematics: no I/O, no clock, no hidden randomness.

An algorithm has one component of each of eight kinds. core/contract.py holds the contracts of means
and server optimizers; those of the other kinds are in their folders.
"""
