"""kube-batch's session plugins."""
