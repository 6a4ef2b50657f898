"""docs/how-to/plugins/safety.md: its examples work, its tables say what there is."""

from __future__ import annotations

import re
from pathlib import Path

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.framework.binding import Permission
from asched.framework.interface import Plugin
from asched.framework.runtime.observation import FailureReason
from asched.framework.runtime.profile import BreakerSpec, PluginPolicy
from tests.daemon.world import KUBE, registry_with

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "plugins" / "safety.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def the_plugin() -> type[Plugin]:
    (text,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(text, "safety.md", "exec"), names)
    found = names["Licences"]
    assert isinstance(found, type)
    assert issubclass(found, Plugin)
    return PluginRegistry().including(found).load("Licences")


def test_settings_make_the_policy_of_the_plugin() -> None:
    (settings,) = blocks("yaml")
    plugin = the_plugin()
    profile = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: Licences}]}}\n"
    configuration = parse(f"{profile}---\n{settings}", "file", registry_with(plugin))
    assert configuration.profiles[0].policies == (
        PluginPolicy("Licences", external=True, optional=True, breaker=BreakerSpec(5, 60.0, 30.0)),
    )
    assert not configuration.warnings


def test_every_permission_and_reason_is_named() -> None:
    for permission in Permission:
        assert f"| `{permission.name}`" in PAGE
        assert f"| `{permission.value}` |" in PAGE
    for reason in FailureReason:
        assert f"`{reason}`" in PAGE
