"""Scheduling on a virtual clock: what happens by itself goes in, what became of each pod comes out.

Pure: no I/O, no wall clock. The same input gives the same result, to the byte.
"""
