"""Explanations and histories of pod groups: why one does not run, and what would admit it."""
