"""The databases of the journal's tests, for tests that put questions to journals."""

from tests.journal.conftest import database_url, postgres

__all__ = ["database_url", "postgres"]
