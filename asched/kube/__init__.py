"""Everything that talks to the API server: reading, watching and writing. Nothing else may."""
