"""asched: an event-sourced Kubernetes scheduler."""

__version__ = "0.1.0"
