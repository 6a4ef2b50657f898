"""The plugins that come with asched: those of kube-scheduler's default profile, one file each."""
