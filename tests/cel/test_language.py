"""Operators, literals, macros and errors of the language."""

from __future__ import annotations

import pytest

from asched.cel import CompileError, EvaluationError, compile_selector
from tests.cel.devices import GPU, matches

ATTRIBUTES = 'device.attributes["gpu.example.com"]'

NOT_CONVERTIBLE = "internal error: interface conversion:"
TRUE = [
    # literals
    "0x1F == 31 && 0x1fu == 31u && 1e3 == 1000.0 && .5 == 0.5",
    "-9223372036854775808 < 0",
    "--1 == 1 && !!true",
    r'"\u00fc\x41\101\n" == "üAA" + "\n"',
    r'r"\d" == "\\d"',
    '"""a"b""" == \'a"b\'',
    r"b'\xff\x00'.size() == 2",
    "b'ü'.size() == 2",
    "[1, 2,].size() == 2 && {'a': 1,}.size() == 1 && [,].size() == 0",
    # operators
    "7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1 && 7 % -3 == 1",
    "1.0 / 0.0 > 1.0 && -1.0 / 0.0 < 1.0",
    "1 < 1.5 && 1u < 2 && 2u > -1 && 2.5 >= 2u",
    "true ? true : false ? false : false",
    "dyn(1) == dyn(1.0) && dyn(1u) == 1 && dyn(1) != dyn('1')",
    "null == null && dyn(1) != null",
    "'a' < 'b' && b'a' < b'b' && false < true",
    "[1, 2] + [3] == [1, 2, 3] && {'a': [1]} == {'a': [1]}",
    "2 in [1, 2] && 'a' in {'a': 1} && !('b' in {'a': 1}) && dyn(2.0) in [1, 2]",
    "{1: 'a'}[dyn(1.0)] == 'a' && {true: 1}[true] == 1",
    "type(1) == int && type([]) == list && type(type(1)) == type && type(null) == null_type",
    "type(duration('1s')) == google.protobuf.Duration && type(ip('::1')) == net.IP",
    # absorbed errors
    "1 / 0 == 1 || true",
    "!(1 / 0 == 1 && false)",
    "[0, 1].exists(x, 1 / x > 0)",
    "![0, 2].all(x, 1 / x > 0)",
    # macros
    "[1, 2, 3].exists_one(x, x > 2) && [1, 2].existsOne(x, x == 1)",
    "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6] && [1, 2, 3].filter(x, x % 2 == 1) == [1, 3]",
    "has({'a': 1}.a) && !has({'a': 1}.b)",
    "[5, 6].all(i, v, v == i + 5) && [5, 6].exists(i, v, i == 1 && v == 6)",
    "[5, 6].exists_one(i, v, v > 5) && {'a': 1}.existsOne(k, v, k == 'a' && v == 1)",
    "{'a': 1}.transformList(k, v, k) == ['a'] && [3, 4].transformList(i, v, i > 0, v) == [4]",
    "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
    "['x'].transformMap(i, v, v) == {0: 'x'}",
    "{'a': 'b'}.transformMapEntry(k, v, {v: k}) == {'b': 'a'}",
    "cel.bind(x, 5, cel.bind(y, x + 1, x * y)) == 30",
    "cel.bind(device, 1, device) == 1",
    "[[1, 2], [3]].map(l, l.map(x, x + 1)) == [[2, 3], [4]]",
    # optional values
    "optional.of(1).value() == 1 && !optional.none().hasValue()",
    "{'a': 1}.?a.value() == 1 && !{'a': 1}.?b.hasValue() && [1][?0].value() == 1",
    "{'a': {'b': 1}}.?a.b.orValue(2) == 1 && {'a': {'c': 1}}.?x.b.orValue(2) == 2",
    "optional.none().or(optional.of(2)).value() == 2",
    "optional.ofNonZeroValue('').orValue('x') == 'x'",
    "[?optional.of(1), ?optional.none(), 2] == [1, 2]",
    "{?'a': optional.none(), 'b': 1} == {'b': 1}",
    "optional.of(2).optMap(x, x + 1) == optional.of(3)",
    "optional.of(2).optFlatMap(x, optional.none()) == optional.none()",
    "optional.unwrap([optional.of(1), optional.none()]) == [1]",
    "[optional.of(1)].unwrapOpt() == [1] && [1, 2].last().value() == 2",
    # conversions
    "int('42') == 42 && int(3.9) == 3 && int(-3.9) == -3 && int(7u) == 7",
    "int(duration('1s')) == 1000000000 && int(timestamp(5)) == 5",
    "string(42) == '42' && string(1.5) == '1.5' && string(true) == 'true' && string(b'a') == 'a'",
    "string(1e21) == '1e+21' && string(1e-7) == '1e-07' && string(-0.0) == '-0'",
    "string(100000.0) == '100000' && string(1234567.0) == '1.234567e+06'",
    "string(0.0001) == '0.0001' && string(0.00012345) == '0.00012345' && string(10.0) == '10'",
    "string(duration('90s')) == '90s' && string(duration('1.5s')) == '1.5s'",
    "string(timestamp('2024-01-02T03:04:05.5Z')) == '2024-01-02T03:04:05.5Z'",
    "double('1.5') == 1.5 && uint('3') == 3u && bool('t') && bytes('ab') == b'ab'",
    # times
    "timestamp('2024-01-01T00:00:00+01:00') == timestamp('2023-12-31T23:00:00Z')",
    "timestamp('2024-02-29T12:30:45.123Z').getDate() == 29",
    "timestamp('2024-02-29T12:30:45.123Z').getMilliseconds() == 123",
    "timestamp('2024-01-01T00:00:00Z').getDayOfWeek() == 1",
    "timestamp('2024-01-01T00:00:00Z').getHours('-08:00') == 16",
    "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
    "duration('1h1m1s').getSeconds() == 3661 && duration('-90s').getMinutes() == -1",
]
FALSE = [
    "dyn('1') == dyn(1)",
    "dyn(1.5) in [1, 2]",
    "{'a': 1, 'a': 2}.a == 1",
    "'a' < 'B'",
]


@pytest.mark.parametrize("expression", TRUE)
def test_true(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize("expression", FALSE)
def test_false(expression: str) -> None:
    assert not matches(expression)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + 1 == 0", "integer overflow"),
        ("-(-9223372036854775808) == 0", "integer overflow"),
        ("(-9223372036854775808) / -1 == 0", "integer overflow"),
        ("1u - 2u == 0u", "unsigned integer overflow"),
        ("[1][5] == 1", "index out of bounds: 5"),
        ("[1][-1] == 1", "index out of bounds: -1"),
        ("{'a': 1}['b'] == 1", "no such key: b"),
        ("{1: 1}[dyn(2.5)] == 1", "no such key: 2.5"),
        ("dyn(1).all(x, true)", "got 'types.Int', expected iterable type"),
        (
            "dyn('a').all(i, x, true)",
            "unsupported comprehension range type: types.String",
        ),
        ("cel.bind(k, b'a', {'a': 1}[dyn(k)]) == 1", "invalid qualifier type: types.Bytes"),
        (
            "semver('1.2.3') in [dyn('1.2.3')] || dyn(semver('1.2.3')) in ['1.2.3'] || true",
            "internal error: runtime error: hash of unhashable type cel.Semver",
        ),
        (
            "dyn(b'a') in ['a'] || true",
            "internal error: runtime error: hash of unhashable type types.Bytes",
        ),
        (
            "lists.range(49).includes(48)",
            "'includes' function cannot be applied to lists longer than 48 values",
        ),
        (
            "[1 / 0].sort() == [] || true",
            f"{NOT_CONVERTIBLE} *types.Err is not traits.Lister: missing method Add",
        ),
        (
            "[1].sortBy(x, x / 0) == [1]",
            f"{NOT_CONVERTIBLE} *types.Err is not traits.Lister: missing method Add",
        ),
        (
            "dyn(1).distinct() == [] || true",
            f"{NOT_CONVERTIBLE} types.Int is not traits.Lister: missing method Contains",
        ),
        ("dyn(1).flatten() == []", "no such overload: int.flatten()"),
        ("dyn({'a': 1}).flatten(2) == []", "no such overload: map(dyn, dyn).flatten(int)"),
        (
            "[[1]].flatten(1 / 0) == []",
            f"{NOT_CONVERTIBLE} ref.Val is *types.Err, not types.Int",
        ),
        ("cidr('10.0.0.0/8').containsIP('x')", "no such overload"),
        (
            r"semver('x\n.1.2') == semver('1.2.3')",
            r'Invalid character(s) found in major number "x\n"',
        ),
        ("semver('é', true) == semver('1.2.3')", 'Invalid character(s) found in major number "0é"'),
        ("dyn([1])['a'] == 1", "unsupported index type 'string' in list"),
        ("dyn(1) + dyn(1.0) == 2.0", "no such overload"),
        ("dyn(true) + 1 == 2", "no such overload: _+_"),
        ("dyn(1) < dyn('a')", "no such overload"),
        ("dyn(1).size() == 1", "no such overload: size"),
        ("dyn(1).lowerAscii() == ''", "no such overload: lowerAscii(int)"),
        ("dyn(1).startsWith('a')", "no such overload"),
        ("!dyn('a')", "no such overload"),
        ("dyn(1) ? true : false", "no such overload"),
        ("true && dyn(1)", "no such overload"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("cel.bind(x, 1 / 0, x == 1 && x == 2)", "division by zero"),
        ("[1, 2].exists_one(x, x / 0 > 1)", "division by zero"),
        ("['a'].transformMapEntry(i, v, {'k': v}).size() == 1 / 0", "division by zero"),
        (
            "['a', 'b'].transformMapEntry(i, v, {'k': v}).size() == 1",
            "insert failed: key k already exists",
        ),
        ("timestamp(9999999999999) == timestamp(0)", "timestamp overflow"),
    ],
)
def test_run_time_errors(expression: str, error: str) -> None:
    if expression.startswith("timestamp("):
        with pytest.raises(CompileError, match=error):
            compile_selector(expression)
        return
    with pytest.raises(EvaluationError) as raised:
        matches(expression)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1",
        "device",
        "device.nosuch == 1",
        "nosuch",
        "1 == 1.0",
        "1 == '1'",
        "1 + 1.0 == 2.0",
        "true && 1",
        "!1",
        "[1, 'a'].size() == 2",
        "{'a': 1, 'b': 'c'}.size() == 2",
        "[1, dyn(2)].size() == 2",
        "device.attributes.model == 'x'",
        "quantity('1') < quantity('2')",
        "quantity('1').sign() == 1",
        "[1].foo()",
        "foo(1)",
        "has(device)",
        "has(device.attributes['a'])",
        "[1].all(1, true)",
        "[1].all(x, x, true)",
        "1.all(x, true)",
        f"{ATTRIBUTES}.model.exists(x, true)",
        "a.b{c: 1}",
        "'abc'.matches('[')",
        "'abc'.find('(?=x)') == ''",
        "'abc'.matches('a**')",
        r"'abc'.matches('\\C')",
        "duration('x') == duration('1m')",
        "timestamp('2024-02-30T00:00:00Z') == timestamp('2024-01-01T00:00:00Z')",
        "int('x') == 1",
        "uint(-1) == 1u",
        "9223372036854775808 == 0",
        "18446744073709551616u == 0u",
        "1e999 == 0.0",
        "`a` == 1",
        "'a\nb' == ''",
        r"'\ud800' == ''",
        r"'\q' == ''",
        "x.in == 1",
        "true and false",
        "device.driver = 'x'",
        "(true",
        "true)",
        "'%d'.format(['a']) == ''",
        "'%s %s'.format(['a']) == ''",
        "'%s'.format(['a', 'b']) == ''",
        "'%q'.format(['a']) == ''",
        "dyn(true)",
        "null",
        "optional.of(true)",
        "-true",
        "!-1",
        "__result__ == 1",
    ],
)
def test_does_not_compile(expression: str) -> None:
    with pytest.raises(CompileError):
        compile_selector(expression)


def test_compile_error_names_the_place() -> None:
    with pytest.raises(CompileError) as raised:
        compile_selector("true &&\n  nosuch")
    assert str(raised.value) == (
        "compilation failed: ERROR: <input>:2:3: undeclared reference to 'nosuch' (in container '')"
    )


def test_compile_error_is_raised_again() -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="must evaluate to bool"):
            compile_selector("1 + 1")


def test_selectors_are_shared() -> None:
    assert compile_selector("1 < 2") is compile_selector("1 < 2")


@pytest.mark.parametrize(
    ("expression", "output_type"),
    [("true", "bool"), (f"{ATTRIBUTES}.ecc", "google.protobuf.Any")],
)
def test_output_type(expression: str, output_type: str) -> None:
    assert compile_selector(expression).output_type == output_type


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("true", 0),
        ("[1, 2, 3].all(x, x > 0)", 16),
        ("[1, 2, 3].exists_one(x, x > 1)", 12),
        (f"has({ATTRIBUTES}.model)", 3),
        (f"({ATTRIBUTES}.ecc ? {ATTRIBUTES} : {ATTRIBUTES}).model == 'a100'", 8),
    ],
)
def test_cost(expression: str, cost: int) -> None:
    assert compile_selector(expression).evaluate(GPU).cost == cost
