"""The client of a device, which trains graphs on data that never leaves it. Imports no torch.

An application beside the client needs `Model` only.
"""

from edge_client.models.application import Model as Model
