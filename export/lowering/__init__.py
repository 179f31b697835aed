"""Decompositions that make a captured training step run on a runtime that was made for inference."""
