"""Live data on a board: sources of samples, a ring of them on disk, labels, and the windows that
training and predictions see."""
