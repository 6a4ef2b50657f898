"""A scheduler plugin for asched."""
