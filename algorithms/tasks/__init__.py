"""Tasks: the loss of a window and the metrics of a model. One file per task."""
