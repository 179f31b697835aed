"""Export of a model and objective to a bundle: graphs are captured, lowered, and checked."""
