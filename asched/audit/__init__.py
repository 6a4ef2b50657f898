"""Queries on a journal: timelines, explanations, replay and what-if comparisons. Read-only."""
