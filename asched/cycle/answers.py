"""What Reserve, Permit and PostFilter answer, looked at where it is answered: so that who gave what
cannot be recorded is named, and no other."""

from __future__ import annotations

from typing import Any

import msgspec

from asched.framework.interface import (
    PermitPlugin,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    ReservePlugin,
    Victim,
)
from asched.framework.plugin_calls import PluginFailure, check_status, unusable

_encode = msgspec.json.Encoder().encode

MAX_PERMIT_TIMEOUT_S = 15 * 60.0
"""No Permit plugin holds a pod longer, whatever it asks for (kube-scheduler's ``maxTimeout``)."""


def permit_timeout_s(plugin: PermitPlugin, answer: PermitResult) -> float:
    """How long the plugin holds the pod. Raises :class:`PluginFailure`."""
    try:
        if not answer.timeout_s >= 0:
            raise PluginFailure(plugin.name, "Permit", f"a timeout of {answer.timeout_s} s")
        return min(answer.timeout_s, MAX_PERMIT_TIMEOUT_S)
    except TypeError as error:
        raise unusable(plugin.name, "Permit", error) from error


def check_keys(plugin: PermitPlugin, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of pods to activate. Raises :class:`PluginFailure` where they are none."""
    try:
        found = tuple(keys)
        _encode(found)
        if not all(isinstance(key, str) for key in found):
            raise TypeError("a key to activate that is no str")
    except Exception as error:
        raise unusable(plugin.name, "Permit", error) from error
    return found


def as_recorded(plugin: ReservePlugin, note: dict[str, Any]) -> dict[str, Any]:
    """The note as a replay will read it from the journal, so that both see the same."""
    try:
        recorded: dict[str, Any] = msgspec.json.decode(_encode(note))
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginFailure(plugin.name, "Reserve", f"note is not JSON: {error}") from None
    return recorded


def check_post_filter(plugin: PostFilterPlugin, answer: PostFilterResult) -> None:
    """Raises :class:`PluginFailure` for what cannot be recorded."""
    check_status(plugin.name, "PostFilter", answer.status)
    try:
        _encode(answer)
        if not all(isinstance(each, Victim) for each in (*answer.victims, *answer.displaced)):
            raise TypeError("a victim that is no Victim")
        if not isinstance(answer.nominated_node, str | None):
            raise TypeError("a nominated node that is no str")
    except Exception as error:
        raise unusable(plugin.name, "PostFilter", error) from error
