"""What a model is to learn: the loss of a window, and what is measured. One file per task."""
