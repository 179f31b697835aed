"""Optimizers of devices: rules that move tensors by their gradients. One file per family."""
