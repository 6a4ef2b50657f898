"""The shared answers for the shapes seen most recently.

Memory, not state: dropping all of it changes no decision.
"""

from __future__ import annotations

from collections import OrderedDict

from asched.cycle.concerns import Concerned, Concerns
from asched.cycle.shape_answers import ShapeAnswers
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.profile import Profile
from asched.state.node_table import NodeTable

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
