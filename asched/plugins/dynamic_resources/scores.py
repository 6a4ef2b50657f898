"""Score: earlier alternatives of ``firstAvailable`` are better."""

from __future__ import annotations

import numpy as np

from asched.dra.scoring import allocation_score
from asched.framework.nodes import Int64Column, RowArray
from asched.plugins.dynamic_resources.node_filter import PodDevices


def has_alternatives(data: PodDevices) -> bool:
    """Whether any request of the pod's claims has alternatives."""
    return any(
        request.first_available for claim in data.claims for request in claim.spec.devices.requests
    )


def raw_scores(data: PodDevices, rows: RowArray) -> Int64Column:
    """The raw scores of rows of the cluster's nodes that passed Filter; 0 where nothing is
    allocated (``computeScore``)."""
    allocated_before = sum(
        allocation_score(claim.spec, claim.status.allocation)
        for claim in data.claims
        if claim.status.allocation is not None
    )
    scores = np.zeros(len(rows), np.int64)
    for group in data.answers:
        if group.answers is not None:
            here = group.member[rows]
            scores[here] = group.answers.scores[rows[here]] + allocated_before
    return scores
