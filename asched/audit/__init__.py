"""Questions to the journal: what happened, and why. Reads, never writes."""
