"""Checks and repairs of a service's folder (`shoal doctor`), without torch and algorithms."""
