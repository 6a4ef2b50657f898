"""Plugins found through entry points of small distributions on disk."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from asched.config.registry import PluginRegistry, RegistryError
from asched.framework.runtime.profile import PluginOrigin
from tests.framework.sample_plugins import SAMPLES, NodeName

GOOD = """
    from asched.framework.interface import FilterPlugin
    from asched.framework.status import SUCCESS

    class Rack(FilterPlugin):
        name = "Rack"
        api_version = 1

        def filter(self, state, pod, node):
            return SUCCESS
"""


def discover_in(site: Path) -> PluginRegistry:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site)])
        return PluginRegistry.discover()


class Site:
    """A directory of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(
        self, distribution: str, plugins: dict[str, str], code: str = "", version: str = "1.2.3"
    ) -> None:
        """Write a distribution with entry points ``plugins`` and a module ``code``."""
        module = distribution.replace("-", "_")
        (self.path / f"{module}.py").write_text(textwrap.dedent(code))
        info = self.path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = [f"{name} = {target}" for name, target in plugins.items()]
        (info / "entry_points.txt").write_text("[asched.plugins]\n" + "\n".join(lines) + "\n")

    def registry(self) -> PluginRegistry:
        return discover_in(self.path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith(("rack", "other")):
            del sys.modules[name]


def test_plugin_is_loaded_with_origin(site: Site) -> None:
    site.install("rack-aware", {"Rack": "rack_aware:Rack"}, GOOD)
    registry = site.registry()
    assert registry.names == ("Rack",)
    assert registry.providers("Rack") == ("rack-aware 1.2.3",)
    assert registry.load("Rack").__name__ == "Rack"
    assert registry.origin("Rack") == PluginOrigin("Rack", "rack-aware", "1.2.3")


def test_plugin_is_imported_on_first_use(site: Site) -> None:
    site.install("rack-aware", {"Rack": "rack_aware:Rack"}, GOOD)
    registry = site.registry()
    assert "Rack" in registry
    assert "rack_aware" not in sys.modules
    registry.load("Rack")
    assert "rack_aware" in sys.modules


def test_duplicate_plugin_name_is_rejected(site: Site) -> None:
    site.install("rack-aware", {"Rack": "rack_aware:Rack"}, GOOD)
    site.install("other-racks", {"Rack": "other_racks:Rack"}, GOOD, version="0.9")
    with pytest.raises(RegistryError) as caught:
        site.registry().load("Rack")
    assert str(caught.value) == (
        'plugin "Rack" is provided by other-racks 0.9 (other_racks:Rack) and'
        " rack-aware 1.2.3 (rack_aware:Rack); uninstall all but one of them"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import no_such_module_at_all",
            (
                "importing rack_aware:Rack failed: ModuleNotFoundError:"
                " No module named 'no_such_module_at_all'"
            ),
        ),
        ("raise SystemExit('no licence')", "failed: SystemExit: no licence"),
        ("def broken(:", "failed: SyntaxError: invalid syntax"),
        ("raise RuntimeError('two\\nlines')", "failed: RuntimeError: two lines"),
        ("", "failed: AttributeError: module 'rack_aware' has no attribute 'Rack'"),
        ("Rack = 5", "5 is not a class derived from asched.framework.interface.Plugin"),
        ("class Rack: pass", "is not a class derived from asched.framework.interface.Plugin"),
        (
            GOOD.replace("api_version = 1", ""),
            "class Rack does not state api_version; this asched has version 1",
        ),
        (
            GOOD.replace("api_version = 1", "api_version = 2"),
            "written for api_version 2, this asched has version 1",
        ),
        (GOOD.replace('"Rack"', '"Rock"'), "class Rack has the name 'Rock'"),
        (GOOD.replace("def filter", "def fitler"), "class Rack does not implement filter"),
        (
            GOOD.replace("api_version = 1", "api_version = 1\n        arguments = dict"),
            "arguments must be a msgspec.Struct type",
        ),
    ],
)
def test_unusable_plugin_is_rejected(site: Site, code: str, message: str) -> None:
    site.install("rack-aware", {"Rack": "rack_aware:Rack"}, code)
    with pytest.raises(RegistryError) as caught:
        site.registry().load("Rack")
    assert message in str(caught.value)
    assert str(caught.value).startswith('plugin "Rack" of rack-aware 1.2.3: ')
    assert "\n" not in str(caught.value)


def test_inherited_api_version_is_rejected(site: Site) -> None:
    code = textwrap.dedent(GOOD) + "\nclass Row(Rack):\n    name = 'Row'\n"
    site.install("rack-aware", {"Row": "rack_aware:Row"}, code)
    with pytest.raises(RegistryError, match="does not state api_version"):
        site.registry().load("Row")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nodename", "did you mean NodeName?"),
        ("NodeNmae", "did you mean NodeName?"),
        ("Zzz", "expected one of DefaultBinder, ImageLocality"),
    ],
)
def test_unknown_plugin_error_suggests_similar_name(name: str, hint: str) -> None:
    with pytest.raises(RegistryError) as caught:
        PluginRegistry().including(*SAMPLES).load(name)
    assert str(caught.value).startswith(f'unknown plugin "{name}"; {hint}')


def test_empty_registry_error_names_searched_path(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"no installed distribution .* asched\.plugins"):
        discover_in(tmp_path).load("Rack")


def test_explicit_registry_validates_classes() -> None:
    with pytest.raises(RegistryError, match="both names must be the same"):
        PluginRegistry({"Other": NodeName})
    registry = PluginRegistry({"NodeName": NodeName}, distribution="mine", version="7")
    assert registry.origin("NodeName") == PluginOrigin("NodeName", "mine", "7")
