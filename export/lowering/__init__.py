"""Tables of decompositions, one for each runtime: by operator of a training step, the operators
that the runtime has instead."""
