"""Ways for bytes to travel: a port and its adapters, MQTT and in-process."""
