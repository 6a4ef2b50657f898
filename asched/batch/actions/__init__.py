"""The actions that kube-batch has, one file each."""
