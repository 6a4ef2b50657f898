"""``asched fit --cluster``: a manifest on the state of a live cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from asched.cli.errors import as_command_error
from asched.cli.followed_cluster import configuration_of, followed_cluster
from asched.config.registry import PluginRegistry
from asched.fit.answer import FitQuery, fit_on
from asched.fit.forms import FitAnswer
from asched.fit.manifest import ManifestError
from asched.state.checkpoint import checkpoint_of, restore

if TYPE_CHECKING:
    from asched.cli.run import ClusterOptions
    from asched.config.file import Configuration

_READ_TIMEOUT_S: Final = 60.0


def fit_on_cluster(options: ClusterOptions, query: FitQuery) -> FitAnswer:
    """Decides a manifest on the cluster as it is now. Nothing is written. Raises CommandError,
    ManifestError."""
    registry = PluginRegistry.discover()
    configuration = configuration_of(options, registry)
    try:
        return anyio.run(_answer, options, query, configuration, registry)
    except (BaseExceptionGroup, ManifestError) as error:
        raise as_command_error(error, bad_input=(ManifestError,)) from None


async def _answer(
    options: ClusterOptions,
    query: FitQuery,
    configuration: Configuration,
    registry: PluginRegistry,
) -> FitAnswer:
    async with followed_cluster(options, configuration, registry, _READ_TIMEOUT_S) as live:
        copy = restore(checkpoint_of(live.followed.state), registry.load)
    return fit_on(copy, query, registry.load, 0)
