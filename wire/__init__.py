"""Protocol between devices and the aggregator.

SPEC.md is its text; this package is its only implementation in Python.
"""
