"""Recordings of a folder: their files, a first look, what was taken for what, and windows."""
