"""kube-batch's actions."""
