"""The protocol between devices and the aggregator. SPEC.md is its text; this package is its one
implementation in Python."""
