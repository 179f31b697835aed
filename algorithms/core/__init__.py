"""What an algorithm is made of, and what the server computes with: the contracts of the choices,
the models of a round in one array."""
