"""The service that finds which devices belong together, averages inside each group, and gives every
device its model."""
