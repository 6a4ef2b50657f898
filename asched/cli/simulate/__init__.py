"""``asched simulate``: a scenario or a trace, scheduled on a virtual clock."""
