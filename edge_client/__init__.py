"""The client that runs on a device: it trains graphs on data that never leaves it. Loads no torch."""
