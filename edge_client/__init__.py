"""The client that runs on a device: it trains graphs on data that never leaves it. Loads no torch.

An application beside the client needs `Model` alone.
"""

from edge_client.models.application import Model as Model
