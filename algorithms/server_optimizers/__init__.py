"""How the server moves a model towards the mean of what devices made of it. One file per family."""
