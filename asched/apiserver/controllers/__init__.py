"""Controllers of the embedded API server: Deployments, ReplicaSets, StatefulSets, DaemonSets and
Jobs make pods, and what belongs to deleted objects goes.

They follow the controllers of Kubernetes (``pkg/controller``) in what they make, in the fields of
``status`` and in the order of updates. Waits and rate limits are left out.
"""
