"""The session plugins that kube-batch has, one file each."""
