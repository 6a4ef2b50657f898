"""Expressions of any form end, with a result or with one of the two errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.cel import (
    CompileError,
    DeviceView,
    EvaluationError,
    SelectorProgram,
    Version,
    compile_selector,
)
from tests.cel.devices import GPU, matches

COST_ERROR = "operation cancelled: actual cost limit exceeded"


def nested(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


@pytest.mark.parametrize(
    ("opening", "inner", "closing"),
    [
        ("(", "true", ")"),
        ("true || (", "true", ")"),
        ("[", "true", "][0]"),
        ("true ? (", "true", ") : false"),
        ("[1].all(x, ", "true", ")"),
        ("cel.bind(x, 1, ", "true", ")"),
        ("optional.of(", "true", ").value()"),
    ],
)
def test_nesting_is_limited(opening: str, inner: str, closing: str) -> None:
    limit = sys.getrecursionlimit()
    assert matches(nested(opening, inner, closing, 100))
    with pytest.raises(CompileError, match="recursion limit"):
        compile_selector(nested(opening, inner, closing, 260))
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("chain", ["{0}.a", "{0}[0]", "{0} + 1", "{0} == 1", "{0} * 2", "{0}.f()"])
def test_chains_are_limited(chain: str) -> None:
    with pytest.raises(CompileError, match="recursion limit"):
        compile_selector("1" + chain.removeprefix("{0}") * 260)


def test_logical_chains_are_not_limited() -> None:
    assert matches(" || ".join(["false"] * 900 + ["true"]))
    assert matches("!" * 1000 + "true")


def test_nested_evaluation_works_for_deep_callers() -> None:
    expression = nested("[1].all(x, ", "true", ")", 120)

    def called(depth: int) -> bool:
        return matches(expression) if depth == 0 else called(depth - 1)

    assert called(600)


def test_long_expressions_do_not_compile() -> None:
    with pytest.raises(CompileError, match="10240"):
        compile_selector("true" + " " * 10_240)
    with pytest.raises(CompileError):
        compile_selector("'\ud800' == ''")


LISTS = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
DOUBLED = "".join(
    f"cel.bind({new}, {old} + {old}, " for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)

AGAIN = DOUBLED.replace("a + a", "k + k")
REPLACED = (
    "cel.bind(b, a.replace('a', a), cel.bind(c, b.replace('a', b),"
    " cel.bind(d, c.replace('a', c), d.replace('a', d) == ''))))"
)
SHARED = "".join(
    f"cel.bind({new}, [[{old}[0], {old}[0]].map(x, dyn(x))].map(x, dyn(x)), "
    for old, new in [("a", "q"), ("q", "a")] * 15
)


@pytest.mark.parametrize(
    "expression",
    [
        "".join(f"{LISTS}.all({name}, " for name in "abcdefgh") + "true" + ")" * 8,
        "lists.range(1000000000).size() == 1",
        "lists.range(900000).map(x, x).map(x, x).size() == 1",
        # Loops that cost nothing in upstream's units.
        "cel.bind(r, lists.range(3000), r.exists_one(x, r.exists_one(y, false)))",
        # Texts and lists that grow exponentially.
        "cel.bind(a, 'aaaaaaaaaa', "
        + DOUBLED
        + DOUBLED.replace("a + a", "k + k")
        + "k == ''"
        + ")" * 21,
        f"cel.bind(a, [1, 2], {DOUBLED}{AGAIN}{AGAIN}k == []" + ")" * 31,
        f"cel.bind(a, 'aaaaaaaaaa', {REPLACED}",
        # Structures with shared parts.
        f"cel.bind(a, [[1, 1]], {SHARED}a == a" + ")" * 31,
    ],
)
def test_cost_is_limited(expression: str) -> None:
    try:
        selector = compile_selector(expression)
    except CompileError:
        pytest.fail("the expression should compile")
    with pytest.raises(EvaluationError, match=COST_ERROR):
        selector.matches(GPU)


@pytest.mark.parametrize("selection", [".a", ".?a"])
def test_operand_of_a_selection_is_evaluated_once(selection: str) -> None:
    nested_cost = compile_selector(
        nested('optional.of({"a": ', "true", f"}}){selection}.orValue(false)", 16)
    ).evaluate(GPU)
    assert nested_cost.match
    assert nested_cost.cost == 498


def test_macros_that_copy_are_limited() -> None:
    with pytest.raises(CompileError, match="too large"):
        compile_selector("optional.of(1)" + ".optMap(x, x)" * 60 + ".hasValue()")


def test_types_are_limited() -> None:
    pairs = "".join(f"cel.bind(a{n + 1}, {{a{n}: a{n}}}, " for n in range(40))
    with pytest.raises(CompileError):
        compile_selector("cel.bind(a0, 1, " + pairs + "a40 == a40" + ")" * 41)


def test_regular_expressions_take_linear_time() -> None:
    assert not matches("('a' + 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!').matches('^(a|a?)+$')")


# -- any input ------------------------------------------------------------------------------------

TOKENS = st.sampled_from(
    [
        *"+-*/%<>=!?:.,()[]{}",
        *("==", "!=", "<=", ">=", "&&", "||", " in ", "'a'", "b'a'", "1", "2u", "0.5", "-", ".?"),
        *("true", "null", "device", ".attributes", ".driver", "['gpu.example.com']", ".model"),
        *("x", ".all(x, ", ".map(x, ", "has(", "cel.bind(x, ", "size(", "dyn(", "int(", "string("),
        *(
            "optional.of(",
            ".orValue(",
            "quantity('1')",
            "semver('1.0.0')",
            "[?",
            ".format([",
            "type(",
        ),
        *(".matches(", "'%s'", "timestamp(", "duration('1s')", ".sum()", ".join()", "type("),
    ]
)
SCALARS = st.sampled_from(
    [
        *("1", "-1", "0", "9223372036854775807", "1u", "0.5", "'a'", "''", "b'x'", "true", "null"),
        *("device", "device.driver", "device.attributes", "device.capacity", "x", "'1s'", "'%d'"),
        'device.attributes["gpu.example.com"].model',
        'device.attributes["gpu.example.com"].index',
        'device.attributes["gpu.example.com"].driverVersion',
        'device.capacity["gpu.example.com"].memory',
        *("[]", "[1]", "{}", "{'a': 1}", "optional.none()", "quantity('1')", "ip('::1')"),
        *("dyn(1)", "dyn('a')", "timestamp(0)", "duration('1h')", "format.uri()", "int"),
    ]
)
UNARY = [
    *("-{}", "!{}", "size({})", "type({})", "string({})", "int({})", "dyn({})", "[{}]", "{}.a"),
    *("double({})", "uint({})", "optional.of({})", "{}.sum()", "{}.flatten()", "{}.distinct()"),
    *("{}.value()", "{}.getHours()", "{}.isInteger()", "{}.?a", "{}.trim()", "timestamp({})"),
    *("semver({})", "quantity({})", "lists.range({})", "url({})", "cidr({})", "has({}.a)"),
]
BINARY = [
    *("{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} % {}", "{} == {}", "{} != {}", "{} < {}"),
    *("{} && {}", "{} || {}", "{} in {}", "{}[{}]", "{}[?{}]", "{{{}: {}}}", "[{}, {}]"),
    *("{}.all(x, {})", "{}.map(x, {})", "{}.exists(x, {})", "{}.filter(x, {})"),
    *("{}.transformMap(k, x, {})", "{}.orValue({})", "{}.compareTo({})", "{}.matches({})"),
    *("{}.indexOf({})", "{}.contains({})", "{}.split({})", "{}.findAll({})", "{}.charAt({})"),
    *("{}.join({})", "sets.contains({}, {})", "{}.sortBy(x, {})", "{}.optMap(x, {})"),
    *("cel.bind(x, {}, {})", "{}.format([{}])"),
]


def _combined(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    unary = st.builds(lambda form, one: form.format(f"({one})"), st.sampled_from(UNARY), children)
    binary = st.builds(
        lambda form, one, other: form.format(f"({one})", f"({other})"),
        st.sampled_from(BINARY),
        children,
        children,
    )
    ternary = st.builds("({}) ? ({}) : ({})".format, children, children, children)
    return unary | binary | ternary


EXPRESSIONS = st.recursive(SCALARS, _combined, max_leaves=8)
ATTRIBUTE_VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=8)
    | st.builds(Version, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
)
DEVICES = st.builds(
    DeviceView,
    st.sampled_from(["gpu.example.com", "d"]),
    st.dictionaries(st.sampled_from(["model", "index", "driverVersion", "a/b"]), ATTRIBUTE_VALUES),
    st.dictionaries(
        st.sampled_from(["memory", "a/b"]), st.sampled_from(["1", "40Gi", "5m", "1e3", "x"])
    ),
    st.booleans(),
)


def _compiled(expression: str) -> SelectorProgram | None:
    try:
        return compile_selector(expression)
    except CompileError:
        return None


def _result(selector: SelectorProgram, device: DeviceView) -> bool | str:
    try:
        return selector.matches(device)
    except EvaluationError as error:
        return str(error)


def _ends(expression: str, device: DeviceView) -> None:
    selector = _compiled(expression)
    if selector is not None:
        assert selector.estimated_cost >= 0
        assert _result(selector, device) != ""


@given(st.text(max_size=60), DEVICES)
def test_any_text_ends(expression: str, device: DeviceView) -> None:
    _ends(expression, device)


@given(st.lists(TOKENS, max_size=25).map("".join), DEVICES)
def test_any_tokens_end(expression: str, device: DeviceView) -> None:
    _ends(expression, device)


@given(EXPRESSIONS, DEVICES)
def test_any_expression_ends(expression: str, device: DeviceView) -> None:
    _ends(expression, device)


@given(EXPRESSIONS, DEVICES)
def test_results_of_any_type_end(expression: str, device: DeviceView) -> None:
    _ends(f"dyn({expression}) == dyn({expression})", device)


@given(EXPRESSIONS, DEVICES)
def test_result_is_repeatable(expression: str, device: DeviceView) -> None:
    selector = _compiled(f"({expression}) == ({expression}) || {expression}")
    if selector is not None:
        assert _result(selector, device) == _result(selector, device)


def test_import_loads_no_pattern_library() -> None:
    code = "import sys, asched.cel; sys.exit('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
