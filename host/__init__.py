"""Services of this machine: whole files, a cache, a C++ compiler, and libraries compiled with it.

Everything that compiles or touches a cache is here, and nothing here depends on rounds or messages.
`native` is the C++ engine that trains and sums; `executorch` the library over ExecuTorch's runtime
that boards use.
"""
