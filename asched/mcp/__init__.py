"""Questions about a journal as tools of the Model Context Protocol: read-only, for programs."""
