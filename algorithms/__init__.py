"""The federated mathematics: no I/O, no clock, no hidden randomness. An algorithm is eight choices;
contract.py says what each is."""
