"""The JSON schema of configuration files."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.config.file import ConfigFileError, parse
from asched.config.registry import PluginRegistry
from asched.config.schema import configuration_schema

REGISTRY = PluginRegistry.discover()


def test_schema_has_fields_values_and_descriptions() -> None:
    schema = configuration_schema(REGISTRY)
    kinds = schema["$defs"]
    assert schema["oneOf"] == [
        {"$ref": "#/$defs/KubeSchedulerConfiguration"},
        {"$ref": "#/$defs/AschedConfiguration"},
    ]
    engine = kinds["EngineSettings"]["properties"]
    assert engine["unschedulableFlushInterval"]["default"] == "5m"
    assert "format" not in engine["unschedulableFlushInterval"]
    profile = kinds["ProfileConfig"]["properties"]
    assert profile["percentageOfNodesToScore"]["anyOf"][0]["maximum"] == 100
    kube = kinds["KubeSchedulerConfiguration"]["properties"]
    assert kube["kind"]["const"] == "KubeSchedulerConfiguration"
    assert kube["parallelism"]["description"].startswith("Accepted for compatibility")


def test_schema_has_the_arguments_of_each_plugin() -> None:
    configured = configuration_schema(REGISTRY)["$defs"]["PluginConfig"]
    then = {one["if"]["properties"]["name"]["const"]: one["then"] for one in configured["allOf"]}
    assert then["NodeResourcesFit"] == {
        "properties": {"args": {"$ref": "#/$defs/NodeResourcesFitArgs"}}
    }
    assert [*then] == configured["properties"]["name"]["examples"]


def test_command_prints_the_schema() -> None:
    done = CliRunner().invoke(app, ["config", "schema"], prog_name="asched")
    assert json.loads(done.stdout) == configuration_schema(REGISTRY)


def test_text_that_must_not_name_files_names_one() -> None:
    text = """
apiVersion: asched.dev/v1
kind: AschedConfiguration
batch: [{conf: /etc/passwd}]
"""
    with pytest.raises(ConfigFileError) as raised:
        parse(text, "new.yaml", REGISTRY, reads_files=False)
    assert raised.value.lines == ("new.yaml: batch: conf: files are not read here; leave it out",)
