"""Hypothesis strategies for labels and selectors, valid and invalid."""

from __future__ import annotations

from hypothesis import strategies as st

from asched.model.selectors import LabelSelector, LabelSelectorRequirement

KEYS = st.sampled_from(["app", "tier", "size"])
VALUES = st.sampled_from(["a", "b", "7", "12", "-3", ""])
LABELS = st.dictionaries(KEYS, VALUES, max_size=3)
REQUIREMENTS = st.builds(
    LabelSelectorRequirement,
    key=KEYS,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    values=st.lists(VALUES, max_size=3).map(tuple),
)
SELECTORS = st.none() | st.builds(
    LabelSelector,
    match_labels=st.dictionaries(KEYS, VALUES, max_size=2),
    match_expressions=st.lists(REQUIREMENTS, max_size=2).map(tuple),
)
"""None selects nothing."""
