"""Server optimizers: rules that move a model towards the devices' mean. One file per family."""
