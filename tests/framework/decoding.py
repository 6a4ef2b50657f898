"""Decoding of configurations for tests."""

from __future__ import annotations

from asched.config.kube_scheduler import KubeSchedulerConfiguration, decode_with_problems
from asched.framework.runtime.strict import ConfigurationError


def decode_configuration(document: object) -> KubeSchedulerConfiguration:
    """The configuration. Raises :class:`ConfigurationError` with all problems."""
    config, problems = decode_with_problems(document)
    if config is None or problems:
        raise ConfigurationError(problems)
    return config
