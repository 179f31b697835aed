"""Databases that earlier versions of Shoal have written, as SQL text, and the script that wrote
them."""
