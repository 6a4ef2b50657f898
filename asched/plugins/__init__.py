"""The built-in plugins: those of kube-scheduler's default profile, and gang scheduling."""
