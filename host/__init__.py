"""What this machine provides: whole files, a cache, a C++ compiler, and what is compiled with it.

Everything that compiles or touches a cache is here, and nothing here knows a round or a message.
`native` is the engine in C++ that trains and sums; `executorch` the library over ExecuTorch's
runtime that boards use.
"""
