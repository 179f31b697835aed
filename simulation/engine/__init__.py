"""The fast simulation: the same plans, device executor and server mathematics, without messages,
spread over the machine's cores."""
