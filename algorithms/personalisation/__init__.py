"""Personal models: candidates that a device makes of its group's model, and its choice of one."""
