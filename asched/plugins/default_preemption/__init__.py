"""DefaultPreemption: evicts pods of lower priority to make a node feasible."""

from asched.plugins.default_preemption.plugin import DefaultPreemption as DefaultPreemption
