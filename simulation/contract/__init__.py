"""The contract of every choice of an algorithm, as checks on tiny fleets.

The tests of this repository and `shoal check` run them.
"""
