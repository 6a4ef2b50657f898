"""The public plugin API: what a plugin may import, together with :mod:`asched.model`.

All that is in ``__all__`` is the contract of :data:`API_VERSION`, whichever module it is written in.
Within one version it only grows; a name that got a better one is kept under the old one and warns
(:mod:`asched.framework.deprecation`). ``docs/plugins/index.md`` is the guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from asched.framework.binding import (
    BindingClient,
    BindingContext,
    Isolation,
    NotPermitted,
    Permission,
    Unavailable,
)
from asched.framework.cluster import (
    Cluster,
)
from asched.framework.cycle_state import (
    Cloneable,
    CycleState,
    StateKey,
)
from asched.framework.deprecation import Renamed, renamed_names
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    CustomHint,
    EventResource,
    QueueingHint,
    QueueingHintFn,
    custom_event,
)
from asched.framework.interface import (
    API_VERSION,
    Arguments,
    BindPlugin,
    EnqueueExtensions,
    Eviction,
    ExtensionPoint,
    FilterAllPlugin,
    FilterPlugin,
    Handle,
    NodeStatuses,
    NormalizeScore,
    PermitPlugin,
    PermitResult,
    PermitReview,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ReserveResult,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
    Victim,
    Waiting,
)
from asched.framework.memo import (
    Memo,
    RowMemo,
)
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    BoolColumn,
    Int32Column,
    Int64Column,
    LabelColumn,
    NodeInfo,
    Nodes,
    RowArray,
    SupposedNodes,
    TaintColumn,
    Verdicts,
)
from asched.framework.pod_groups import (
    AnyPodGroup,
    GroupMembers,
    MemberStatus,
    PodGroupKey,
    find_group,
    group_of,
    min_count,
)
from asched.framework.pod_info import (
    HostPort,
    LabelSet,
    PodInfo,
    PodShape,
    QueuedPod,
)
from asched.framework.pod_queries import (
    AffinityTerm,
    PodQuery,
    Selector,
    TermHolders,
    TermKind,
)
from asched.framework.scoring import (
    normalize_to_highest,
    truncated_quotient,
)
from asched.framework.session_objects import (
    Job,
    Queue,
    Task,
    TaskStatus,
)
from asched.framework.session_plugins import (
    Action,
    AllocatablePlugin,
    Closing,
    ClosingPlugin,
    EventHandlerPlugin,
    Invalid,
    JobOrderPlugin,
    JobPipelinedPlugin,
    JobReadyPlugin,
    JobValidPlugin,
    NodeOrderPlugin,
    OverusedPlugin,
    PredicatePlugin,
    PreemptablePlugin,
    QueueOrderPlugin,
    ReclaimablePlugin,
    Session,
    SessionPlugin,
    Statement,
    TaskOrderPlugin,
    VictimTest,
)
from asched.framework.status import (
    REJECTIONS,
    SUCCESS,
    Code,
    Status,
)
from asched.framework.trial import (
    Fit,
    Trial,
)
from asched.framework.volume_assumptions import (
    ClaimRef,
)
from asched.framework.volumes import (
    MountedVolumes,
    PodClaim,
    claims_of,
)
from asched.framework.workload_selectors import (
    WorkloadSelectors,
)

__all__ = [
    "API_VERSION",
    "Action",
    "ActionType",
    "AffinityTerm",
    "AllocatablePlugin",
    "AnyPodGroup",
    "Arguments",
    "BindPlugin",
    "BindingClient",
    "BindingContext",
    "BoolColumn",
    "ClaimRef",
    "Cloneable",
    "Closing",
    "ClosingPlugin",
    "Cluster",
    "ClusterEvent",
    "ClusterEventWithHint",
    "Code",
    "CustomHint",
    "CycleState",
    "EnqueueExtensions",
    "EventHandlerPlugin",
    "EventResource",
    "Eviction",
    "ExtensionPoint",
    "FilterAllPlugin",
    "FilterPlugin",
    "Fit",
    "GroupMembers",
    "Handle",
    "HostPort",
    "Int32Column",
    "Int64Column",
    "Invalid",
    "Isolation",
    "Job",
    "JobOrderPlugin",
    "JobPipelinedPlugin",
    "JobReadyPlugin",
    "JobValidPlugin",
    "LabelColumn",
    "LabelSet",
    "MAX_NODE_SCORE",
    "MIN_NODE_SCORE",
    "Memo",
    "MountedVolumes",
    "NodeInfo",
    "NodeOrderPlugin",
    "NodeStatuses",
    "Nodes",
    "NormalizeScore",
    "NotPermitted",
    "OverusedPlugin",
    "Permission",
    "PermitPlugin",
    "PermitResult",
    "PermitReview",
    "Plugin",
    "PodClaim",
    "PodGroupKey",
    "PodInfo",
    "PodQuery",
    "PodShape",
    "PostBindPlugin",
    "PostFilterPlugin",
    "PostFilterResult",
    "PreBindPlugin",
    "PreEnqueuePlugin",
    "PreFilterExtensions",
    "PreFilterPlugin",
    "PreFilterResult",
    "PreScorePlugin",
    "PredicatePlugin",
    "PreemptablePlugin",
    "Queue",
    "QueueOrderPlugin",
    "QueueSortPlugin",
    "QueuedPod",
    "QueueingHint",
    "QueueingHintFn",
    "REJECTIONS",
    "ReclaimablePlugin",
    "ReservePlugin",
    "ReserveResult",
    "RowArray",
    "RowMemo",
    "SUCCESS",
    "Scope",
    "ScoreAllPlugin",
    "ScorePlugin",
    "Selector",
    "Session",
    "SessionPlugin",
    "MemberStatus",
    "StateKey",
    "Statement",
    "Status",
    "SupposedNodes",
    "TaintColumn",
    "Task",
    "TaskOrderPlugin",
    "TaskStatus",
    "TermHolders",
    "TermKind",
    "Trial",
    "Unavailable",
    "Verdicts",
    "Victim",
    "VictimTest",
    "Waiting",
    "WorkloadSelectors",
    "claims_of",
    "custom_event",
    "find_group",
    "group_of",
    "min_count",
    "normalize_to_highest",
    "truncated_quotient",
]

RENAMED: Final[Mapping[str, Renamed]] = {}
"""Old names of the contract, which still work and warn."""

if not TYPE_CHECKING:
    # A type checker is to refuse what is not listed above.
    __getattr__ = renamed_names(__name__, RENAMED)
