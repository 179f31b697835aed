"""The objects of `import shoal`: data, simulations, comparisons and exports from Python.

Each name is loaded at its first use.
"""
