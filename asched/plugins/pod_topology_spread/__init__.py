"""PodTopologySpread: spreads matching pods evenly over topology domains such as zones and hosts."""

from asched.plugins.pod_topology_spread.plugin import PodTopologySpread as PodTopologySpread
