"""The table of the attempts of a group: equal successive attempts share a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.pod_group.forms import RecordedGroupAttempt
from asched.audit.pod_group.history import PodGroupHistory
from asched.cli.explain_group import attempt_rows, print_group_history
from asched.state.group_records import GroupOutcome

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NO_ROOM = "0/2 placements are available, first placement status: pod group is unschedulable"


def attempt(number: int, message: str, placed: int = 0) -> RecordedGroupAttempt:
    outcome = GroupOutcome.UNSCHEDULABLE if message else GroupOutcome.SCHEDULED
    at = BEGIN + timedelta(minutes=number)
    return RecordedGroupAttempt(number, at, outcome, 2, placed, message=message)


def history(*attempts: RecordedGroupAttempt) -> PodGroupHistory:
    return PodGroupHistory(
        namespace="ml",
        name="a",
        minimum=2,
        members=(),
        first_at=None,
        started_at=None,
        ended_at=None,
        wait_s=None,
        attempts=attempts,
        outcomes={},
        member_attempts=0,
        domain="",
        victims=(),
        evicted=0,
    )


def test_equal_attempts_share_a_row_with_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    waits = [attempt(number, NO_ROOM) for number in range(3)]
    print_group_history(history(*waits, attempt(3, NO_ROOM, 1), attempt(4, "", 2)))
    table = capsys.readouterr().out.partition("FIRST (UTC)")[2].partition("POD")[0]
    rows = [line for line in table.splitlines() if line.startswith("2026")]
    assert [row.split()[3:6] for row in rows[:1]] == [["00:02:00.000", "0", "3"]]
    assert len(rows) == 3
    assert "0/2 placements are available" in rows[0]
    assert rows[2].split()[2:] == ["4", "1", "scheduled", "2", "of", "2", "0"]


@given(st.lists(st.tuples(st.sampled_from(["", NO_ROOM, "put off"]), st.integers(0, 2))))
def test_rows_cover_all_attempts(results: list[tuple[str, int]]) -> None:
    attempts = [attempt(number, *result) for number, result in enumerate(results)]
    rows = [*attempt_rows(attempts)]
    assert sum(int(str(row[3])) for row in rows) == len(attempts)
    assert all(one[4:] != other[4:] for one, other in pairwise(rows))
