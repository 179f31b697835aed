"""A simulated fleet on one machine.

The core, the runner and the agents are those of the field; links are in-process and the clock is
virtual.
"""
