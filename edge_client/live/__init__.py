"""Live data on a board: sources of samples, their store on disk, labels, and windows."""
