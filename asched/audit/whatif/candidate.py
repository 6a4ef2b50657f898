"""What is to be tried on a recorded history: a scheduler that differs from the recorded one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from asched.audit.pods import AuditError
from asched.audit.whatif.extraction import RecordedHistory
from asched.audit.whatif.measures import to_place
from asched.audit.whatif.plugin_changes import PluginChange, with_changes
from asched.framework.registry import Registry
from asched.sim.virtual.loop import Scheduler


def candidate_scheduler(
    history: RecordedHistory,
    configured: Scheduler | None,
    changes: Iterable[PluginChange],
    registry: Registry,
    name: str,
) -> Scheduler:
    """The configured scheduler, or else the recorded one, with the changes; seed and pace are those
    of the recorded one. ``name`` is what messages call it.

    Raises :class:`AuditError` for changes that cannot be made, and where pods of the history ask for a
    scheduler that is not among its profiles.
    """
    recorded = history.scheduler
    scheduler = recorded
    if configured is not None:
        scheduler = msgspec.structs.replace(
            configured,
            seed=recorded.seed,
            lottery=recorded.lottery,
            rules=recorded.rules,
            pace=recorded.pace,
        )
    profiles = with_changes(scheduler.profiles, changes, registry)
    scheduler = msgspec.structs.replace(scheduler, profiles=profiles)
    _check_names(history, scheduler, name)
    return scheduler


def _check_names(history: RecordedHistory, scheduler: Scheduler, candidate: str) -> None:
    names = {profile.scheduler_name for profile in scheduler.profiles}
    names |= {session.scheduler_name for session in scheduler.sessions}
    asked = {pod.pod.spec.scheduler_name for pod in to_place(history.recorded)}
    if asked - names:
        missing = ", ".join(sorted(asked - names))
        raise AuditError(
            f"{candidate} has no profile named {missing}, which pods of the history ask for; it has"
            f" {', '.join(sorted(names))}"
        )
