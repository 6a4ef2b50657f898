"""HTTP extenders of a KubeSchedulerConfiguration, in the form in which decisions see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from asched.config.kube_scheduler import Extender
from asched.framework.runtime.extenders import ExtenderSpec, shown_url
from asched.framework.runtime.profile import ProfileSpec


def in_order_of_asking(extenders: Iterable[Extender]) -> tuple[Extender, ...]:
    """Ignorable ones last, as kube-scheduler asks them."""
    return tuple(sorted(extenders, key=lambda extender: extender.ignorable))


def spec_of(extender: Extender) -> ExtenderSpec:
    return ExtenderSpec(
        name=shown_url(extender.url_prefix),
        filter_verb=extender.filter_verb,
        prioritize_verb=extender.prioritize_verb,
        preempt_verb=extender.preempt_verb,
        bind_verb=extender.bind_verb,
        weight=extender.weight,
        managed_resources=tuple(resource.name for resource in extender.managed_resources),
        ignorable=extender.ignorable,
    )


_FIT: Final = "NodeResourcesFit"


def without_ignored_resources(
    profiles: Iterable[ProfileSpec], extenders: Iterable[Extender]
) -> tuple[ProfileSpec, ...]:
    """The profiles with NodeResourcesFit ignoring what extenders manage with
    ``ignoredByScheduler``. As in kube-scheduler these take the place of ``ignoredResources``."""
    ignored = [
        resource.name
        for extender in extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    ]
    if not ignored:
        return tuple(profiles)
    return tuple(_ignoring(profile, ignored) for profile in profiles)


def _ignoring(profile: ProfileSpec, resources: list[str]) -> ProfileSpec:
    if _FIT not in profile.plugin_names:
        return profile
    args: dict[str, Any] = profile.arguments.get(_FIT, {}) | {"ignoredResources": resources}
    return msgspec.structs.replace(profile, arguments=profile.arguments | {_FIT: args})
