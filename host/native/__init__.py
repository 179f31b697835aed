"""Training and evaluation in C++, without Python's interpreter lock.

``network_of`` reads a model of sensor windows or images and checks that its layers are known,
``NativeTrainer`` runs it. Both refuse with a reason (``Unsupported``, ``CannotCompile``), so that a
caller can take another path and report why.
"""
