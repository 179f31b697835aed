"""Virtual time: what devices are like, when they train, drop out and finish, and when the server
aggregates. Nothing is trained here.

::

    profiles   what each device is like: columns drawn from a named distribution, or read from a
    trace
    fleet      who may start now, and what becomes of a device that does: a pure function of the
    seed, the device and the time
    campaign   rounds by a policy, which the machine of a fleet makes
    report     what a run cost, and how long it took to reach an accuracy
"""
