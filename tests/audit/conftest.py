"""Shares the databases of the journal tests."""

from tests.journal.conftest import database_url

__all__ = ["database_url"]
