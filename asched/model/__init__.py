"""What the scheduler knows of Kubernetes: typed, immutable values decoded from the API's JSON."""
