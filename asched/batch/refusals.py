"""How the nodes refused a task, in words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from asched.batch.open_session import OpenSession
from asched.framework.session_objects import Queue, Task


def refusal_message(session: OpenSession, task: Task) -> str:
    """``0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had untolerated taint(s).``

    As kube-scheduler puts it: a node counts for the first predicate that refuses it, or for each
    resource that it lacks.
    """
    books = session.node_books
    counts: Counter[str] = Counter(session.tiers.refused_nodes(task))
    open_rows = session.feasible(task)
    for name, number in task.init_request.amounts().items():
        if number > 0:
            idle = books.idle.get(name)
            lacking = open_rows if idle is None else open_rows & (idle < number)
            counts[f"Insufficient {name}"] += int(np.count_nonzero(lacking))
    total = session.nodes.cluster_size
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items() if count)
    tail = f": {', '.join(reasons)}" if reasons else ""
    return f"0/{total} nodes are available{tail}."


def capability_message(queue: Queue) -> str:
    return f"queue {queue.name} has all that its capability allows."
