"""How a device gets its certificate and all else that it needs to take part, and renews it."""
