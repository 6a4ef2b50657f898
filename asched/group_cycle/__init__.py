"""The group cycle: tries a whole pod group on one state, and commits or drops all of it.

Source: ``schedule_one_podgroup.go`` and the workload-aware preemption of kube-scheduler 1.36.
"""
