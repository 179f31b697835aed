"""Metrics, traces and alerts for other systems."""
