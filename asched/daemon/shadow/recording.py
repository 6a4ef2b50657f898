"""Shadow mode on a recording."""

from __future__ import annotations

from collections.abc import Iterator

from asched import __version__
from asched.daemon.config_file import Configuration
from asched.daemon.shadow.explaining import Window
from asched.daemon.shadow.follower import Follower, profiles_record, start_notes
from asched.daemon.shadow.report import Report
from asched.framework.registry import Registry
from asched.kube.tape import Tape
from asched.state.records import AnyRecord, EngineStarted, TurnStarted
from asched.state.rules import LATEST_RULES

_NS_PER_S = 1_000_000_000


def records_of(tape: Tape, follower: Follower, configuration: Configuration) -> Iterator[AnyRecord]:
    """All records of a run over the tape, each folded already. Raises TapeError."""

    def applied(record: AnyRecord) -> AnyRecord:
        follower.apply(record)
        return record

    seed = configuration.settings.engine.seed
    yield applied(EngineStarted(__version__, seed, shadow=True, rules=LATEST_RULES))
    yield applied(profiles_record(configuration))
    for recorded in tape:
        # The tape's clock begins with 0; a tape whose lines are out of order keeps their order.
        now_ns = max(follower.state.now_ns, round(recorded.at_s * _NS_PER_S))
        if now_ns != follower.state.now_ns:
            yield applied(TurnStarted(now_ns))
        for record in follower.observe(recorded.change):
            yield applied(record)
        for explained in follower.explained():
            yield applied(explained)
    for explained in follower.explained_at_the_end():
        yield applied(explained)


def compare_recording(
    tape: Tape, configuration: Configuration, registry: Registry, window: Window | None = None
) -> Report:
    """Compare every decision on the tape. Raises TapeError."""
    follower = Follower(registry.load, window)
    for note in start_notes(configuration):
        follower.note(note)
    for _ in records_of(tape, follower, configuration):
        pass
    return follower.report()
