"""The federated mathematics: no I/O, no clock, no hidden randomness. An algorithm is six choices; contract.py says what each is."""
