"""A read-only browser interface and HTTP API on a journal (``docs/how-to/ui.md``)."""
