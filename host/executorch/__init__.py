"""A small C++ library over ExecuTorch's runtime, and its build.

Devices run programs with it without torch.
"""
