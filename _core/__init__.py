"""Compiled hot paths: buffers and integers in, integers and bytes out.

Layer 0. Performs no I/O, reads no clock, imports nothing of the other packages. Each module is a
.pyx file with a .pyi file that is its contract in Python, and a .pxd file where others cimport it.
"""
