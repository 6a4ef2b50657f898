"""Other nodes and other load: changes of a workload trace (``docs/how-to/planning.md``)."""
