"""The configuration file: documents, places in the file, every mistake a line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.config.file import ConfigFileError, load, parse
from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.settings import AschedConfiguration, HealthSettings, LogLevel
from asched.config.yaml import YamlError, parse_documents
from tests.framework.sample_plugins import SAMPLES

REGISTRY = PluginRegistry().including(*SAMPLES)
KUBE = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
OWN = "apiVersion: asched.dev/v1\nkind: AschedConfiguration\n"


def lines(text: str) -> list[str]:
    with pytest.raises(ConfigFileError) as caught:
        parse(text, "f.yaml", REGISTRY)
    return list(caught.value.lines)


def test_no_file_means_defaults() -> None:
    found = load(None, REGISTRY)
    assert found.scheduler == KubeSchedulerConfiguration()
    assert found.settings == AschedConfiguration()
    assert [profile.scheduler_name for profile in found.profiles] == ["default-scheduler"]


@pytest.mark.parametrize("order", [(KUBE, OWN), (OWN, KUBE)])
def test_both_documents_in_either_order(order: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    kube = KUBE + "podMaxBackoffSeconds: 20\n"
    own = OWN + "log: {level: debug}\nengine: {turnTimeSlice: 20ms}\n"
    texts = [kube if text is KUBE else own for text in order]
    file.write_text("---\n" + "---\n".join(texts))
    found = load(file, REGISTRY)
    assert found.scheduler.pod_max_backoff_seconds == 20
    assert found.settings.log.level is LogLevel.DEBUG
    assert found.settings.engine.turn_time_slice == timedelta(milliseconds=20)


@pytest.mark.parametrize("text", [KUBE, OWN])
def test_one_document_is_enough(text: str) -> None:
    assert len(parse(text, "f.yaml", REGISTRY).profiles) == 1


def test_every_mistake_of_a_file_is_one_line_with_its_place() -> None:
    text = (
        KUBE
        + """\
paralelism: 16
leaderElection:
  leaseDuration: 15
profiles:
  - schedulerName: a
    plugins:
      score:
        enabled:
          - name: ImageLocalty
      filters: {}
    pluginConfig:
      - name: NodeResourcesFit
        args:
          type: Foo
---
"""
        + OWN
        + "health: {address: nowhere}\nlogs: {}\n"
    )
    assert lines(text) == [
        "f.yaml:3: document 1: paralelism: unknown field; did you mean parallelism?",
        (
            "f.yaml:5: document 1: leaderElection.leaseDuration: expected a duration such as"
            ' "15s", got 15'
        ),
        (
            "f.yaml:11: document 1: profiles[0].plugins.score.enabled[0].name: unknown plugin"
            ' "ImageLocalty"; did you mean ImageLocality?'
        ),
        "f.yaml:12: document 1: profiles[0].plugins.filters: unknown field; did you mean filter?",
        (
            'f.yaml:16: document 1: profiles[0].pluginConfig[0].args.type: unknown value "Foo";'
            " expected one of LeastAllocated, MostAllocated"
        ),
        ('f.yaml:20: document 2: health: "nowhere" is not host:port, such as "127.0.0.1:10251"'),
        "f.yaml:21: document 2: logs: unknown field; did you mean log?",
    ]


def test_what_was_wrong_is_not_told_again_as_missing() -> None:
    text = KUBE + "profiles:\n- schedulerName: 5\n- schedulerName: b\n"
    assert lines(text) == [
        "f.yaml:4: document 1: profiles[0].schedulerName: expected a string, got 5"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "",
            (
                "f.yaml: no document; expected kind KubeSchedulerConfiguration or"
                " AschedConfiguration"
            ),
        ),
        ("# nothing\n---\n", "f.yaml: no document"),
        ("a: [", "f.yaml:1: not valid YAML: while parsing a flow node"),
        ("a: b: c", "f.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: !!python/object:os.system {}", "f.yaml:1: document 1: kind: required"),
        ("a: !!set-of-things x", "f.yaml:1: not valid YAML: the tag"),
        ("a: &x [*x]", "f.yaml:1: not valid YAML: an alias contains itself"),
        (
            'a: b\nkind: "\\ud800"',
            "f.yaml:2: not valid YAML: a string contains half of a surrogate pair",
        ),
        (
            '"\\udfff": b',
            "f.yaml:1: not valid YAML: a string contains half of a surrogate pair",
        ),
        ("? [a]\n: b", "f.yaml:1: not valid YAML: a key must be a scalar"),
        ("\x00", "f.yaml: not valid YAML: "),
        ("[" * 5000 + "]" * 5000, "f.yaml: not valid YAML: nested too deeply"),
        ("just text", "f.yaml:1: document 1: expected a mapping with apiVersion and kind"),
        ("a: 1", "f.yaml:1: document 1: kind: required; expected KubeSchedulerConfiguration or"),
        (
            "kind: KubeSchedulerConfig",
            (
                'f.yaml:1: document 1: kind: unknown value "KubeSchedulerConfig";'
                " did you mean KubeSchedulerConfiguration?"
            ),
        ),
        (
            "kind: KubeSchedulerConfiguration",
            "f.yaml:1: document 1: apiVersion: required; expected kubescheduler.config.k8s.io/v1",
        ),
        (
            "kind: AschedConfiguration\napiVersion: asched.dev/v2",
            'f.yaml:2: document 1: apiVersion: expected asched.dev/v1, got "asched.dev/v2"',
        ),
        (
            KUBE.replace("/v1", "/v1beta3"),
            "f.yaml:1: document 1: apiVersion: expected kubescheduler.config.k8s.io/v1, got",
        ),
        (
            KUBE + "---\n" + KUBE,
            "f.yaml:5: document 2: kind: document 1 already has kind KubeSchedulerConfiguration",
        ),
        (KUBE + "parallelism: 1\nparallelism: 2", "parallelism: duplicate key, on lines 3 and 4"),
        (KUBE + "clientConnection: {qps: .inf}", "qps: .inf is not a finite number"),
        (KUBE + "parallelism: !!int ''", 'parallelism: "" is not a value of the type !!int'),
        (
            KUBE + "extenders:\n- urlPrefix: x\n",
            'f.yaml:4: document 1: extenders[0].urlPrefix: expected an http or https URL, got "x"',
        ),
        (OWN + "engine: {seed: -1}", "engine.seed: must be at least 0, got -1"),
        (OWN + "engine: {turnTimeSlice: 0s}", "engine: turnTimeSlice must be greater than 0"),
        (OWN + "health: {address: 'a:70000'}", 'health: "a:70000" is not host:port'),
        (
            OWN + "journal: {url: 'mysql://me:secret@db/x'}",
            "journal: url: cannot keep a journal in mysql://me:***@db/x: expected a file's path,",
        ),
        (OWN + "journal: {url: ''}", "journal: url: '' is not a journal: expected a file's path,"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    (line,) = lines(text)
    assert expected in line
    assert "\n" not in line


def test_aliases_cannot_grow_without_bound() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )
    with pytest.raises(YamlError, match="too large"):
        parse_documents(text)


def test_yaml_values_are_those_of_kubernetes() -> None:
    (document,) = parse_documents(
        "base: &b {x: 1, y: 2}\nmerged: {<<: *b, y: 3}\nday: 2020-01-01\ntime: 12:30\n"
        "on: yes\n1: one\nnone: ~\nhex: 0x10\nquoted: '1'\nratio: 1.5\n"
    )
    assert document.value == {
        "base": {"x": 1, "y": 2},
        "merged": {"x": 1, "y": 3},
        "day": "2020-01-01",
        "time": "12:30",
        "on": True,
        "1": "one",
        "none": None,
        "hex": 16,
        "quoted": "1",
        "ratio": 1.5,
    }
    assert document.problems == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"a: \xff\xfe")
    for path, expected in (
        (tmp_path / "none.yaml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "not UTF-8 text: invalid start byte at byte 3"),
    ):
        with pytest.raises(ConfigFileError) as caught:
            load(path, REGISTRY)
        assert caught.value.lines == (f"{path}: {expected}",)


def test_warnings_name_what_has_no_effect() -> None:
    text = KUBE + "profiles:\n- plugins:\n    score:\n      disabled: [{name: Nothing}]\n"
    assert parse(text, "f.yaml", REGISTRY).warnings == (
        (
            "f.yaml:6: document 1: profiles[0].plugins.score.disabled[0].name: no effect:"
            ' unknown plugin "Nothing"'
        ),
    )


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("[::1]:8080", "::1", 8080), ("", "", 0)],
)
def test_health_addresses(address: str, host: str, port: int) -> None:
    settings = HealthSettings(address)
    assert (settings.host, settings.port) == (host, port)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"# \n\t0159.~<?,%", max_size=40))
def test_no_text_ends_in_anything_but_lines(text: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        parse(text, "f.yaml", REGISTRY)
    assert caught.value.lines
    assert all("\n" not in line for line in caught.value.lines)
