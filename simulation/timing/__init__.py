"""Virtual time: properties of devices, their jobs, and rounds. Nothing is trained here.

::

    profiles      properties of each device: columns drawn from a distribution, or read from a trace
    traces        reads recorded devices and hours from CSV files
    availability  the hours in which a device may train
    fleet         devices that may start a job, and the course of it: a pure function of seed,
                  device and time
    draws         random numbers as a function of their purpose
    campaign      rounds by a policy, decided by the state machine of a fleet
    report        cost of a run, and time to reach an accuracy
"""
