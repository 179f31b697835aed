"""Contracts of an algorithm's components, and the arrays that the server computes with."""
