"""The contract of every choice of an algorithm, as checks on tiny fleets: for the tests of this
repository and for `shoal check`."""
