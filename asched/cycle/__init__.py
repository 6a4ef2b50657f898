"""Scheduling of single pods: PreFilter to Permit, as in kube-scheduler's scheduling cycle."""
