"""The command line. One file per command, wiring and words only."""
