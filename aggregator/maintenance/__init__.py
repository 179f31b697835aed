"""`shoal doctor`: checks everything in a service's folder, and mends what can be mended. Loads no
torch and nothing of the algorithm."""
