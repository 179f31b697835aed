"""Aggregation service: groups devices, averages in each group, and gives every device a model."""
