"""The shared answers for the shapes seen most recently.

Memory, not state: dropping all of it changes no decision.

Which plugins have nothing to do for a pod: asked once for what can be known of its template.

Most plugins that look beyond a node's own row concern few pods (those with volumes, claims, groups), and
say so from the pod's specification alone. What they said is kept for the copies of a template, which
share the specification as one object.
"""

from __future__ import annotations

from collections import OrderedDict

from asched.cycle.shape_answers import ShapeAnswers
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.plugin_calls import concerns
from asched.framework.runtime.profile import Profile
from asched.model.meta import Annotations
from asched.model.pod import PodSpec
from asched.state.node_table import NodeTable

_MOST_TEMPLATES = 256
"""Each keeps a specification alive, also that of a template whose pods are gone."""


class Concerned:
    """The plugins of scope CLUSTER that a pod concerns, by extension point, in the profile's order."""

    __slots__ = ("filter", "nobody", "pre_filter", "pre_score", "score", "unconcerned", "unscored")

    def __init__(self, profile: Profile, unconcerned: frozenset[str]) -> None:
        self.unconcerned = unconcerned
        """Names of those of the profile that have nothing to do for the pod."""
        self.unscored = unconcerned.intersection(p.name for p in profile.own_pre_score)
        """Names of those of them whose PreScore would answer Skip."""
        self.nobody = len(unconcerned) == len(profile.own_plugins)
        self.pre_filter = [p for p in profile.own_pre_filter if p.name not in unconcerned]
        self.filter = [(rank, p) for rank, p in profile.own_filter if p.name not in unconcerned]
        self.pre_score = [p for p in profile.own_pre_score if p.name not in unconcerned]
        self.score = [w for w in profile.own_score if w.plugin.name not in unconcerned]


class _Alike:
    """What the templates have in common that concern the same plugins."""

    __slots__ = ("concerned", "unconcerned")

    def __init__(self, unconcerned: frozenset[str]) -> None:
        self.unconcerned = unconcerned
        """Of the plugins that go by the template."""
        self.concerned: dict[int, Concerned] = {}
        """By who of the plugins that are asked each time is unconcerned, a bit for each."""


class _Template:
    """What is known of the pods of one template."""

    __slots__ = ("alike", "annotations", "namespace", "spec")

    def __init__(self, pod: PodInfo, alike: _Alike) -> None:
        # Held, so that its id stays its own.
        self.spec: PodSpec = pod.pod.spec
        self.annotations: Annotations = pod.pod.metadata.annotations
        self.namespace = pod.namespace
        self.alike = alike


class Concerns:
    """What the plugins of one profile say that look at more than a node's own row. Memory, not state."""

    __slots__ = ("_alike", "_each_time", "_once", "_profile", "_templates")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        asked = [p for p in profile.own_plugins if type(p).concerns is not Plugin.concerns]
        self._once = [p for p in asked if p.concerns_templates]
        each_time = [p for p in asked if not p.concerns_templates]
        self._each_time = [(1 << place, plugin) for place, plugin in enumerate(each_time)]
        self._templates: OrderedDict[int, _Template] = OrderedDict()
        # By the plugins that are unconcerned: few such sets occur, however many templates there were.
        self._alike: dict[frozenset[str], _Alike] = {}

    def of(self, pod: PodInfo) -> Concerned:
        """The plugins that the pod concerns now. Raises
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`."""
        alike = self._alike_of(pod)
        said = 0
        for bit, plugin in self._each_time:
            if not concerns(plugin, pod):
                said |= bit
        concerned = alike.concerned.get(said)
        if concerned is None:
            names = alike.unconcerned.union(p.name for b, p in self._each_time if said & b)
            concerned = alike.concerned[said] = Concerned(self._profile, names)
        return concerned

    def _alike_of(self, pod: PodInfo) -> _Alike:
        spec, meta = pod.pod.spec, pod.pod.metadata
        template = self._templates.get(id(spec))
        if template is not None:
            notes = template.annotations
            same = notes is meta.annotations or notes == meta.annotations
            if same and template.namespace == meta.namespace:
                return template.alike
        names = frozenset(p.name for p in self._once if not concerns(p, pod))
        alike = self._alike.get(names)
        if alike is None:
            alike = self._alike[names] = _Alike(names)
        self._templates[id(spec)] = _Template(pod, alike)
        if len(self._templates) > _MOST_TEMPLATES:
            self._templates.popitem(last=False)
        return alike


_MOST_SHAPES = 128
_MOST_PROFILES = 64


class ShapeCache:
    """Answers per profile and shape; the longest unused go first."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._answers: OrderedDict[tuple[Profile, PodShape], ShapeAnswers] = OrderedDict()
        self._concerns: dict[Profile, Concerns] = {}

    def concerned(self, profile: Profile, pod: PodInfo) -> Concerned:
        """The plugins that are asked for the pod itself. Raises :class:`PluginFailure`."""
        known = self._concerns.get(profile)
        if known is None:
            if len(self._concerns) == _MOST_PROFILES:
                # Those of earlier configurations are asked no more.
                self._concerns.clear()
            known = self._concerns[profile] = Concerns(profile)
        return known.of(pod)

    def answers(self, profile: Profile, pod: PodInfo) -> ShapeAnswers:
        """Up-to-date answers for the pod's shape. Raises :class:`PluginFailure`."""
        if pod.pod.spec.node_name:
            # A demand for one node is not part of the shape, so it is not shared.
            answers = ShapeAnswers(profile, pod, self._table)
            answers.refresh(pod)
            return answers
        key = (profile, pod.shape)
        # Out while it is refreshed: a plugin that fails half-way is asked for all of it next time.
        known = self._answers.pop(key, None)
        if known is None or known.outdated:
            known = ShapeAnswers(profile, pod, self._table)
        known.refresh(pod)
        if known.failed:
            return known
        self._answers[key] = known
        if len(self._answers) > _MOST_SHAPES:
            self._answers.popitem(last=False)
        return known
