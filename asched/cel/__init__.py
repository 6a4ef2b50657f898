"""CEL expressions that select devices, as kube-scheduler 1.36 evaluates them.

The language, its libraries, types and costs are those of cel-go 0.26 with Kubernetes' options.
"""

from asched.cel.errors import CompileError, EvaluationError
from asched.cel.kubernetes_scalars import Version
from asched.cel.selector import (
    AttributeValue,
    DeviceSelector,
    DeviceView,
    Evaluation,
    compile_selector,
)

__all__ = [
    "AttributeValue",
    "CompileError",
    "DeviceSelector",
    "DeviceView",
    "Evaluation",
    "EvaluationError",
    "Version",
    "compile_selector",
]
