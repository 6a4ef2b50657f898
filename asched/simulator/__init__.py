"""Discrete-event simulation of scheduling on a virtual clock.

Pure: no I/O and no wall clock. The same trace, configuration and seed give the same result to the
byte.
"""
