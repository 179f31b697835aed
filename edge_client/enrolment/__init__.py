"""Enrolment of a device: getting its certificate and the files to take part, and renewal."""
