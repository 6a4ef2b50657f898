"""Tests of consolidation."""
