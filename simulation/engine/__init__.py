"""The fast simulation, spread over the machine's cores.

It has the plans, the device executor and the server mathematics of the field, without messages.
"""
