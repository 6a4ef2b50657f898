"""Consolidation: which nodes or domains can be freed, and the moves that free them.

The planner is pure: it works on a copy of a cluster state, and the scheduling cycle decides each
move. :mod:`asched.consolidation.execution` carries out a plan in a cluster.
"""

from asched.consolidation.plan import ConsolidationPlan as ConsolidationPlan
from asched.consolidation.plan import KeptDomain as KeptDomain
from asched.consolidation.plan import plan_consolidation as plan_consolidation
from asched.state.consolidation_records import ConsolidationSettings as ConsolidationSettings
