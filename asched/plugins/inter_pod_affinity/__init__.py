"""InterPodAffinity: pod affinity and anti-affinity, of the incoming pod and of existing pods."""

from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity as InterPodAffinity
