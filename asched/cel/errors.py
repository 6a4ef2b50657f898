"""Errors of expressions, with the place in the text."""

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


def syntax_error(expression: str, offset: int, message: str) -> CompileError:
    """The error for text that is no expression, with its line and column."""
    return located_error(expression, offset, f"Syntax error: {message}")


def located_error(expression: str, offset: int, message: str) -> CompileError:
    """The error for a place in the expression, with its line and column."""
    before = expression[:offset]
    line = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1) + 1
    return CompileError(f"compilation failed: ERROR: <input>:{line}:{column}: {message}")
