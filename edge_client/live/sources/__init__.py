"""Where samples come from; `edge_client.live.samples` has the port that each module here
implements."""
