"""What `import shoal` gives: data, simulations, comparisons and exports from Python. Each name is
loaded when it is first used."""
