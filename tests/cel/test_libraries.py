"""Functions of the extensions and of Kubernetes."""

from __future__ import annotations

import pytest

from asched.cel import EvaluationError
from tests.cel.devices import matches

TRUE = [
    # strings
    "'tacocat'.charAt(3) == 'o' && 'abc'.charAt(3) == ''",
    "'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.indexOf('', 9) == 9",
    "'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2",
    "'hello'.lastIndexOf('') == 5 && 'ab'.lastIndexOf('abc') == -1",
    "'TacoCÆt'.lowerAscii() == 'tacocÆt' && 'tacoCæt'.upperAscii() == 'TACOCæT'",
    "'aaa'.replace('a', 'b', 2) == 'bba' && 'ab'.replace('', '-') == '-a-b-'",
    "'aaa'.replace('a', 'b', 0) == 'aaa' && 'aaa'.replace('a', 'b', -1) == 'bbb'",
    "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']",
    "'a,b'.split(',', 0) == [] && 'a,b'.split(',', 1) == ['a,b'] && 'ab'.split('') == ['a', 'b']",
    "'abc'.split('', 2) == ['a', 'bc'] && ''.split(',') == ['']",
    "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'",
    r"' \u00a0\t x \u3000'.trim() == 'x' && '\u001cx'.trim().size() == 2",
    "['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b' && [].join('-') == ''",
    r"""strings.quote('a"b\n') == '"a\\"b\\n"'""",
    "'%s %d %s'.format(['a', 1, [1, 'b']]) == 'a 1 [1, \"b\"]'",
    (
        "'%.1f %f %e'.format([1234.56, 1.5, 1052.032911275]) =="
        " '1,234.6 1.500000 1.052033\u202f×\u202f10⁰³'"
    ),
    "'%b %o %x %X %x'.format([5, 8, 255, 255, 'hi']) == '101 10 ff FF 6869'",
    "'%s'.format([{'b': 1, 'a': true}]) == '{\"a\":true, \"b\":1}'",
    "'%s %s %s'.format([null, duration('1s'), type(1)]) == 'null 1s int' && '%%' == '%%'",
    # regular expressions
    "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('x') == ''",
    "'1 22 333'.findAll('[0-9]+') == ['1', '22', '333'] && 'abc'.findAll('x') == []",
    "'1 22 333'.findAll('[0-9]+', 2) == ['1', '22'] && 'baac'.findAll('a*') == ['', 'aa', '']",
    "'ABC'.matches('(?i)abc') && matches('abc', 'b') && !'a\\nb'.matches('a.b')",
    r"'日本'.matches('^\\pL+$')",
    # lists
    "[1, 2, 2].isSorted() && ![2, 1].isSorted() && [].isSorted()",
    "[1.5, 2.5].sum() == 4.0 && [1u].sum() == 1u && [].sum() == 0",
    "[duration('1s'), duration('2s')].sum() == duration('3s')",
    "['b', 'a'].min() == 'a' && [false, true].max()",
    "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
    "[1, 2, 3].slice(1, 3) == [2, 3] && [].slice(0, 0) == []",
    "[[1], [2, 3]].flatten() == [1, 2, 3]",
    "[[[1]], [[2]]].flatten(2) == [1, 2] && [[[1]]].flatten(0) == [[[1]]]",
    "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sort() == ['a', 'b']",
    "['ccc', 'a', 'bb'].sortBy(s, s.size()) == ['a', 'bb', 'ccc']",
    "[1, 1, 2].distinct() == [1, 2]",
    "lists.range(3) == [0, 1, 2] && lists.range(-1) == [] && [1, 2].reverse() == [2, 1]",
    "sets.contains([1, 2, 3], [3, 1]) && !sets.contains([1], [2]) && sets.contains([1], [])",
    "sets.equivalent([1, 1], [1]) && !sets.equivalent([1], [1, 2])",
    "sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [])",
    # quantities
    "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1k').asInteger() == 1000",
    "quantity('100m') == quantity('0.1') && quantity('100m').asApproximateFloat() == 0.1",
    "quantity('0').add(-9223372036854775807).add(-1).isInteger()",
    "quantity('1').sub(-9223372036854775807 - 1).asInteger() == -9223372036854775807",
    "!quantity('500m').isInteger() && !quantity('1.5Gi').isInteger()",
    "quantity('2') != quantity('1').add(1) && [quantity('2')] == [quantity('1').add(1)]",
    "quantity('50k').add(quantity('20k')) == quantity('70k') && sign(quantity('-1')) == -1",
    "quantity('1').sub(2) == quantity('-1') && quantity('1E').asInteger() == 1000000000000000000",
    "quantity('1.0').compareTo(quantity('1')) == 0 && !quantity('1.0').isInteger()",
    "[dyn('a'), dyn(1)].isSorted() && [dyn(1), dyn('a'), dyn(3)].max() == 3",
    "quantity('Ki') == quantity('0') && quantity('-').isInteger() && isQuantity('.e1')",
    "quantity('m') == quantity('0') && !quantity('m').isInteger() && !isQuantity('K')",
    "isQuantity('1.5Ki') && isQuantity('1e3') && !isQuantity('1.5Kb') && !isQuantity('')",
    "isQuantity('.5') && isQuantity('5.') && !isQuantity('1e') && !isQuantity('1 ')",
    # versions
    "semver('1.0.0-alpha').isLessThan(semver('1.0.0-alpha.1'))",
    "semver('1.0.0-alpha.1').isLessThan(semver('1.0.0-alpha.beta'))",
    "semver('1.0.0-rc.1').isLessThan(semver('1.0.0')) && semver('1.2.3').minor() == 2",
    "semver('v01.2', true) == semver('1.2.0') && !isSemver('01.2.3') && isSemver('v1', true)",
    "!isSemver('1.2-rc', true) && !isSemver('1.2.3-01') && isSemver('1.2.3-0a+b.c')",
    # addresses
    "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && ip('0.0.0.0').isUnspecified()",
    "ip('224.0.0.1').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast()",
    "ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()",
    "ip('10.0.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()",
    "ip.isCanonical('::1') && !ip.isCanonical('0::1') && string(ip('0::1')) == '::1'",
    "!isIP('1.2.3') && !isIP('01.2.3.4') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')",
    "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
    "cidr('10.0.0.0/8').ip() == ip('10.0.0.0')",
    "cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16')) && !cidr('::/0').containsIP('1.2.3.4')",
    "!isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0/08') && !isCIDR('10.0.0.0/255.0.0.0')",
    "string(cidr('10.1.2.3/8')) == '10.1.2.3/8' && cidr('10.0.0.0/8').prefixLength() == 8",
    # URLs
    "url('https://u@example.com:80/a%20b?x=y&x=z#f').getHostname() == 'example.com'",
    "url('https://example.com:80/').getPort() == '80' && url('/path').getHost() == ''",
    "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]/').getPort() == ''",
    "url('https://e.com/a%20b').getEscapedPath() == '/a%20b'",
    "url('https://e.com/?x=1&x=2&y=a%20b').getQuery() == {'x': ['1', '2'], 'y': ['a b']}",
    "isURL('https://e.com') && isURL('/a') && !isURL('a') && !isURL('https://e.com:x/')",
    "!isURL('') && !isURL('../x') && !isURL('https://a b/') && !isURL('/%zz')",
    # formats
    "!format.dns1123Label().validate('a-b').hasValue()",
    "format.dns1123Label().validate('A').hasValue() && format.named('uuid').hasValue()",
    "format.dns1035Label().validate('1a').hasValue() && !format.named('nosuch').hasValue()",
    "!format.dns1123Subdomain().validate('a.b-c.d').hasValue()",
    "!format.qualifiedName().validate('example.com/A_b').hasValue()",
    "format.qualifiedName().validate('/a').hasValue()",
    "!format.labelValue().validate('').hasValue()",
    "!format.dns1123LabelPrefix().validate('a-').hasValue()",
    "!format.uri().validate('https://e.com').hasValue() && format.uri().validate('x').hasValue()",
    "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
    "!format.byte().validate('aGk=').hasValue() && format.byte().validate('a').hasValue()",
    "!format.date().validate('2024-02-29').hasValue()",
    "format.date().validate('2023-02-29').hasValue()",
    "!format.datetime().validate('2024-02-29T00:00:00Z').hasValue()",
]


@pytest.mark.parametrize("expression", TRUE)
def test_true(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1:::2", 'each colon-separated field must have at least one digit (at ":2")'),
        ("1::2::3", 'multiple :: in address (at ":3")'),
        ("12345::", 'each group must have 4 or fewer digits (at "12345::")'),
        ("1:2", "address string too short"),
        ("1:2:3:4:5:6:7:8:9", 'trailing garbage after address (at "9")'),
        ("1:2:3:4::5:6:7:8", "the :: must expand to at least one field of zeros"),
        ("1:g::", 'each colon-separated field must have at least one digit (at "g::")'),
        ("1g::", 'unexpected character, want colon (at "g::")'),
        ("1::2:", 'colon must be followed by more characters (at ":")'),
        ("::1.2.3.400", "IPv4 field has value >255"),
        ("1:1.2.3.4", "embedded IPv4 address must replace the final 2 fields of the address"),
        ("::1%", "zone must be a non-empty string"),
    ],
)
def test_problems_of_addresses(text: str, problem: str) -> None:
    with pytest.raises(EvaluationError) as raised:
        matches(f"ip('{text}').family() == 6")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("'abc'.charAt(4) == ''", "index out of range: 4"),
        ("'abc'.indexOf('a', -1) == 0", "index out of range: -1"),
        ("'abc'.substring(2, 1) == ''", "invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(1, 9) == ''", "index out of range: 9"),
        ("[1].slice(0, 2) == []", "cannot slice(0, 2), list is length 1"),
        (
            "[1].slice(-1, 2) == []",
            "cannot slice(-1, 2), negative indexes not supported",
        ),
        ("[].max() == 1", "max called on empty list"),
        ("[[1]].flatten(-1) == []", "level must be non-negative"),
        ("[dyn(1), dyn('a')].sort() == []", "list elements must have the same type"),
        ("semver('x') == semver('1.0.0')", "No Major.Minor.Patch elements found"),
        (
            "semver('v1.2.3').major() == 1",
            'Invalid character(s) found in major number "v1"',
        ),
        # Kubernetes returns a sum as a pointer, which its equality does not know.
        ("quantity('2') == quantity('1').add(1)", "no such overload"),
        (
            "'a'.find('[' + '') == ''",
            "Illegal regex: error parsing regexp: missing closing ]: `[`",
        ),
        (
            "'a'.matches('a*' + '*')",
            "error parsing regexp: invalid nested repetition operator: `**`",
        ),
        ("[dyn('a'), dyn(1)].join() == ''", "join: invalid input: 1"),
        ("quantity('500m').asInteger() == 0", "cannot convert value to integer"),
        (
            "ip('10.1.2.300').family() == 4",
            (
                'IP Address "10.1.2.300" parse error during conversion from string:'
                ' ParseAddr("10.1.2.300"): IPv4 field has value >255'
            ),
        ),
        (
            "url('x').getHost() == ''",
            'URL parse error during conversion from string: parse "x": invalid URI for request',
        ),
        (
            "'%d'.format([dyn('a')]) == ''",
            (
                "error during formatting: decimal clause can only be used on integers, was given"
                " string"
            ),
        ),
        (
            "dyn(1).isGreaterThan(quantity('1'))",
            "no such overload: isGreaterThan(int, kubernetes.Quantity)",
        ),
        ("dyn(1).allowed()", "no such overload: allowed(int)"),
        ("'a'.find(dyn(1)) == ''", "no such overload: find(string, int)"),
        ("dyn(1).find('a') == ''", "no such overload"),
        ("timestamp(0).getHours('1:b') == 1", 'strconv.Atoi: parsing "b": invalid syntax'),
    ],
)
def test_run_time_errors(expression: str, error: str) -> None:
    with pytest.raises(EvaluationError) as raised:
        matches(expression)
    assert str(raised.value) == error
