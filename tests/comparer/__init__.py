"""Tests of the comparer."""
