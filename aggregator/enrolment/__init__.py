"""Certificates of devices: the service's authority, tokens, renewal, and the ban at the broker."""
