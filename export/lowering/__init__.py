"""Lowering of training graphs: a table per runtime that replaces operators it does not have."""
