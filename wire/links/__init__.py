"""Transport of bytes: a port and its adapters, MQTT and in-process."""
