"""The version of Shoal, as a check-in names it. A constant: a board looks up no package metadata at
every start."""

VERSION = "0.1.0"
CLIENT = f"shoal {VERSION}"
