"""Test kit for plugins: object builders, single plugins and whole profiles on a virtual cluster.

>>> from asched.testing import node, pod, schedule, profile
>>> schedule(profile(), [node("n", cpu="2")], [pod("p", cpu="1")]).nodes
{'p': 'n'}

``docs/how-to/plugins/testing.md`` is the guide.
"""

from types import ModuleType as _ModuleType

from asched.testing.builders import claim as claim
from asched.testing.builders import from_api as from_api
from asched.testing.builders import from_yaml as from_yaml
from asched.testing.builders import node as node
from asched.testing.builders import nodes as nodes
from asched.testing.builders import pod as pod
from asched.testing.builders import pod_group as pod_group
from asched.testing.builders import pods as pods
from asched.testing.builders import storage_class as storage_class
from asched.testing.builders import volume as volume
from asched.testing.harness import FakeBindingClient as FakeBindingClient
from asched.testing.harness import RecordedRequest as RecordedRequest
from asched.testing.harness import instance as instance
from asched.testing.harness import run_filter as run_filter
from asched.testing.harness import scores as scores
from asched.testing.placements import PlacementResult as PlacementResult
from asched.testing.placements import Placements as Placements
from asched.testing.placements import schedule as schedule
from asched.testing.profiles import ProfileSetup as ProfileSetup
from asched.testing.profiles import profile as profile
from asched.testing.profiles import profile_setup as profile_setup

__all__ = [
    name
    for name, value in globals().items()
    if not (name.startswith("_") or isinstance(value, _ModuleType))
]
