"""A small C++ library over ExecuTorch's runtime, and what builds it: devices run programs with it
without torch."""
