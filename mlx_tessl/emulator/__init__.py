"""Runs Metal kernels on the CPU, from their source.

Ops use it within ``mlx_tessl.emulate()``. ``runtime`` launches single kernels on NumPy arrays, ``compiler`` compiles
them. Nothing here imports mlx or the extension before a kernel is launched: kernels can be compiled without either.
"""
