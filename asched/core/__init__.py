"""The sans-I/O scheduler core: changes and outcomes in, records out."""
