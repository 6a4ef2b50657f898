"""Measurements. Run as modules, ``python -m benchmarks.drain``; nothing here is a test."""
