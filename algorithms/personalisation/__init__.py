"""What a device keeps when a run is over."""
