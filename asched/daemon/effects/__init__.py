"""Effects on the cluster: one handler for each type of decision, started once it is durable."""
