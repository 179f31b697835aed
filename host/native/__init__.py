"""Training and evaluation in C++ of the layers that models of sensor windows and images are made
of, without Python's interpreter lock.

``network_of`` reads a model and says whether its layers are known, ``Trainer`` runs it. Both refuse
with a reason (``Unsupported``, ``CannotCompile``), so that a caller can take another path and say
why.
"""
