"""CEL expressions that select devices, as kube-scheduler 1.36 evaluates them.

The language, its libraries, types and costs are those of cel-go 0.26 with Kubernetes' options.
"""

from asched.cel.errors import CompileError, EvaluationError
from asched.cel.kubernetes_scalars import Version
from asched.cel.selector import (
    AttributeValue,
    DeviceView,
    Evaluation,
    SelectorProgram,
    compile_selector,
)

__all__ = [
    "AttributeValue",
    "CompileError",
    "SelectorProgram",
    "DeviceView",
    "Evaluation",
    "EvaluationError",
    "Version",
    "compile_selector",
]
