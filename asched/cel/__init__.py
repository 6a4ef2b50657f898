"""CEL expressions that select devices, as kube-scheduler 1.36 evaluates them.

The language, its libraries, types and costs are those of cel-go 0.26 with Kubernetes' options.
"""

from asched.cel.errors import CompileError, EvaluationError
from asched.cel.selector import (
    AttributeValue,
    DeviceSelector,
    DeviceView,
    Evaluation,
    compile_selector,
)
from asched.cel.versions import Version

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
