"""Caches per profile: shared results per pod shape, and the plugins that apply to a pod.

Clearing either cache changes no decision. Most plugins that look beyond a node's own row apply to
few pods. Pods of one template share the specification as one object, so the answer of
``applies_to`` is kept by its identity.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from asched.cycle.shape_filters import CommonFilter, ShapeFilters
from asched.framework.interface import Plugin
from asched.framework.nodes import FilterResult
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.plugin_calls import applies_to, derives
from asched.framework.runtime.profile import Profile, WeightedScorer
from asched.framework.scoring import ScoresByClass
from asched.model.meta import Annotations
from asched.model.pod import PodSpec
from asched.state.node_table import NodeTable

_MAX_TEMPLATES = 256
"""Each keeps a specification alive, even if its pods are gone."""


class ApplicablePlugins:
    """The cluster-scope plugins that apply to a pod, by extension point, in the profile's order."""

    def __init__(self, profile: Profile, inapplicable: frozenset[str]) -> None:
        scope = profile.cluster_scope
        self.inapplicable = inapplicable
        """Names of the profile's cluster-scope plugins that do not apply."""
        self.inapplicable_pre_filters = inapplicable.intersection(p.name for p in scope.pre_filter)
        """Those of them with a PreFilter."""
        self.inapplicable_scores = inapplicable.intersection(p.name for p in scope.pre_score)
        """Those of them with a PreScore, which would return Skip."""
        self.none_applies = len(inapplicable) == len(scope.all())
        self.pre_filter = [p for p in scope.pre_filter if p.name not in inapplicable]
        self.filter = [(rank, p) for rank, p in scope.filter if p.name not in inapplicable]
        self.pre_score = [p for p in scope.pre_score if p.name not in inapplicable]
        self.score = [w for w in scope.score if w.plugin.name not in inapplicable]
        alone = len(inapplicable) + 1 == len(scope.all())
        alone = alone and len(self.score) == len(self.pre_score) == 1
        self.only_scorer = _scorer_by_class(self.score[0]) if alone else None
        """The plugin that applies, if it is the only one and may have a common answer."""
        filters = self.only_scorer is not None and self.pre_filter and self.filter
        self.only_filter_rank = self.filter[0][0] if filters else None
        """The rank of its filter; None if the profile does not use it."""


def _scorer_by_class(scorer: WeightedScorer) -> ScoresByClass | None:
    plugin = scorer.plugin
    return plugin if derives(plugin, ScoresByClass) else None


@dataclass
class _TemplateClass:
    """Templates with the same inapplicable plugins."""

    inapplicable: frozenset[str]
    """Of the plugins that depend on the template alone."""
    plugins: dict[int, ApplicablePlugins] = field(default_factory=dict)
    """By a bit mask of the other plugins: those that do not apply."""


class _PodTemplate(NamedTuple):
    spec: PodSpec
    """A reference, so that the id is not reused."""
    annotations: Annotations
    namespace: str
    template_class: _TemplateClass


class ApplicabilityCache:
    """Which of one profile's cluster-scope plugins apply to a pod."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        plugins = profile.cluster_scope.all()
        asked = [p for p in plugins if type(p).applies_to is not Plugin.applies_to]
        self._per_template = [p for p in asked if p.applies_per_template]
        per_pod = [p for p in asked if not p.applies_per_template]
        self._per_pod = [(1 << place, plugin) for place, plugin in enumerate(per_pod)]
        self._templates: OrderedDict[int, _PodTemplate] = OrderedDict()
        # By the inapplicable plugins: few such sets occur, however many templates there are.
        self._classes: dict[frozenset[str], _TemplateClass] = {}

    def plugins(self, pod: PodInfo) -> ApplicablePlugins:
        """The plugins that apply to the pod now. Raises :class:`PluginFailure`."""
        template_class = self._class_of(pod)
        mask = 0
        for bit, plugin in self._per_pod:
            if not applies_to(plugin, pod):
                mask |= bit
        plugins = template_class.plugins.get(mask)
        if plugins is None:
            names = template_class.inapplicable.union(p.name for b, p in self._per_pod if mask & b)
            plugins = template_class.plugins[mask] = ApplicablePlugins(self._profile, names)
        return plugins

    def _class_of(self, pod: PodInfo) -> _TemplateClass:
        spec, meta = pod.pod.spec, pod.pod.metadata
        template = self._templates.get(id(spec))
        if template is not None:
            annotations = template.annotations
            same = annotations is meta.annotations or annotations == meta.annotations
            if same and template.namespace == meta.namespace:
                return template.template_class
        names = frozenset(p.name for p in self._per_template if not applies_to(p, pod))
        template_class = self._classes.get(names)
        if template_class is None:
            template_class = self._classes[names] = _TemplateClass(names)
        self._templates[id(spec)] = _PodTemplate(
            spec, meta.annotations, meta.namespace, template_class
        )
        if len(self._templates) > _MAX_TEMPLATES:
            self._templates.popitem(last=False)
        return template_class


_MAX_SHAPES = 128
_MAX_PROFILES = 64
_MIN_COMMON_ATTEMPTS = 30
"""Attempts with one common answer, after which keeping results for it pays: another attempt takes a
tenth of the time of computing these results, or less."""
_MAX_COUNTED = 16
"""With more answers, each result would have to be updated for many nodes whenever it is used."""

_Key = tuple[Profile, PodShape, FilterResult | None]
"""With the rejections of a common answer."""


class ShapeCache:
    """Shared results by profile and shape; evicts the least recently used."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._filters: OrderedDict[_Key, ShapeFilters] = OrderedDict()
        self._common_attempts: OrderedDict[_Key, int] = OrderedDict()
        """The number of attempts with common answers for which no results are kept."""
        self._applicability: dict[Profile, ApplicabilityCache] = {}
        self._versions: dict[Profile, tuple[int, ...]] = {}

    def _drop_invalid(self, profile: Profile) -> None:
        """Drop the profile's answers if they depend on something that changed."""
        versions = profile.shared_answers_versions()
        known = self._versions.get(profile)
        if known == versions:
            return
        if known is not None:
            self._applicability.pop(profile, None)
            for key in [key for key in self._filters if key[0] is profile]:
                del self._filters[key]
        elif len(self._versions) == _MAX_PROFILES:
            # Most belong to earlier configurations.
            self._versions.clear()
            self._filters.clear()
            self._common_attempts.clear()
            self._applicability.clear()
        self._versions[profile] = versions

    def plugins(self, profile: Profile, pod: PodInfo) -> ApplicablePlugins:
        """The cluster-scope plugins that apply to the pod. Raises :class:`PluginFailure`."""
        self._drop_invalid(profile)
        known = self._applicability.get(profile)
        if known is None:
            known = self._applicability[profile] = ApplicabilityCache(profile)
        return known.plugins(pod)

    def filters(self, profile: Profile, pod: PodInfo) -> ShapeFilters:
        """Up-to-date results for the pod's shape, after :meth:`plugins` in the same attempt. Raises
        :class:`PluginFailure`."""
        if pod.pod.spec.node_name:
            # The shape does not include ``nodeName``, so the results cannot be shared.
            filters = ShapeFilters(profile, pod, self._table)
            filters.refresh(pod)
            return filters
        return self._refreshed((profile, pod.shape, None), pod, None)

    def common_filters(
        self, profile: Profile, pod: PodInfo, rank: int, plugin: str, rejections: FilterResult
    ) -> ShapeFilters | None:
        """:meth:`filters` with the rejections of a common answer; None if there are none yet,
        because too few attempts have had this answer. Raises :class:`PluginFailure`."""
        if pod.pod.spec.node_name:
            return None
        key = (profile, pod.shape, rejections)
        if key not in self._filters and not self._occurs_often(key):
            return None
        return self._refreshed(key, pod, (rank, CommonFilter(plugin, rejections)))

    def _occurs_often(self, key: _Key) -> bool:
        attempts = self._common_attempts.pop(key, 0) + 1
        if attempts > _MIN_COMMON_ATTEMPTS:
            return True
        self._common_attempts[key] = attempts
        if len(self._common_attempts) > _MAX_COUNTED:
            self._common_attempts.popitem(last=False)
        return False

    def _refreshed(
        self, key: _Key, pod: PodInfo, common: tuple[int, CommonFilter] | None
    ) -> ShapeFilters:
        # Not in the cache during the refresh: if a plugin fails, everything is recomputed next
        # time.
        known = self._filters.pop(key, None)
        if known is None or known.outdated:
            known = ShapeFilters(key[0], pod, self._table, common)
        known.refresh(pod)
        if known.pre_filter.failed:
            return known
        self._filters[key] = known
        if len(self._filters) > _MAX_SHAPES:
            self._filters.popitem(last=False)
        return known
