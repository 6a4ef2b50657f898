"""Performance measurements, run as modules: ``python -m benchmarks.engine``."""
