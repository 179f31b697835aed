"""How a device moves its tensors by their gradients. One file per family."""
