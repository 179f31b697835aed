"""Sources of samples; each module implements the port in `edge_client.live.samples`."""
