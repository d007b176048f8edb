"""Compiled hot paths: buffers and integers in, integers and bytes out.

Layer 0. It performs no I/O, reads no clock and imports nothing from the other packages. Each module
has a .pyx file (code), a .pyi file (its contract in Python), and a .pxd file if others cimport it.
"""
