"""Errors of expressions."""

from __future__ import annotations


class CompileError(ValueError):
    """The expression does not compile; the text says where and why."""


class EvaluationError(Exception):
    """The expression has no result for a device; the text is kube-scheduler's where known."""


class SubexpressionError(Exception):
    """Error of a subexpression, which a logical operator may absorb."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CostLimitError(Exception):
    """The evaluation used more than it may; nothing absorbs this."""


class InternalError(Exception):
    """The evaluation fails inside kube-scheduler; nothing absorbs this."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


NO_SUCH_OVERLOAD = "no such overload"


def no_overload() -> SubexpressionError:
    """Failure of an operation that is not defined for the types of its operands."""
    return SubexpressionError(NO_SUCH_OVERLOAD)
