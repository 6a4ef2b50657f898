"""kube-batch's configuration file: the actions and plugins of batch sessions.

    actions: "reclaim, allocate, backfill, preempt"
    tiers:
    - plugins:
      - name: gang
        enablePreemptable: false

Parsing is compatible with kube-batch: unknown fields are ignored, callbacks are enabled by default,
numbers and booleans are accepted as text, and booleans are YAML 1.1's (``yes``, ``on``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import yaml

from asched.batch.registry import SessionRegistry
from asched.config.settings import BatchSettings
from asched.config.yaml import YamlError, compose_documents, read_limited
from asched.framework.runtime.strict import suggestion
from asched.framework.sessions import Callback, Compatibility, PluginOption, SessionSpec, Tier

DEFAULT_CONF: Final = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
"""kube-batch's default configuration."""

_PREFIX: Final = "tag:yaml.org,2002:"
_BOOLEANS: Final = {
    **dict.fromkeys(("y", "yes", "true", "on"), True),
    **dict.fromkeys(("n", "no", "false", "off"), False),
}
_TEXT_TAGS: Final = frozenset(
    f"{_PREFIX}{kind}" for kind in ("str", "int", "float", "bool", "timestamp", "value")
)


class ConfError(ValueError):
    """The configuration cannot be used."""


class ConfSyntaxError(ConfError):
    """The text is not YAML, or does not have the form of a configuration."""


class UnknownActionError(ConfError):
    """No such action. The message is kube-batch's."""

    def __init__(self, written: str) -> None:
        super().__init__(f"failed to found Action {written}, ignore it")
        self.name = written.strip()


class SessionConf(msgspec.Struct, frozen=True):
    actions: tuple[str, ...]
    tiers: tuple[Tier, ...] = ()

    @property
    def plugin_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(option.name for tier in self.tiers for option in tier))


def parse_conf(text: str, known_actions: Collection[str]) -> SessionConf:
    """Parse a configuration. The caller checks plugin names.

    Raises :class:`ConfSyntaxError`, and :class:`UnknownActionError` for an action that is not in
    ``known_actions``.
    """
    try:
        root = next(iter(compose_documents(text)), None)
    except YamlError as error:
        where = f"line {error.line}: " if error.line else ""
        raise ConfSyntaxError(f"yaml: {where}{error}") from None
    fields = _mapping(root)
    # kube-batch trims names after splitting, so its error shows the text between commas.
    written = _text(fields.get("actions")).split(",")
    for action in written:
        if action.strip() not in known_actions:
            raise UnknownActionError(action)
    actions = tuple(action.strip() for action in written)
    return SessionConf(actions, tuple(_tier(node) for node in _sequence(fields.get("tiers"))))


def _tier(node: yaml.Node) -> Tier:
    return tuple(_plugin(option) for option in _sequence(_mapping(node).get("plugins")))


def _plugin(node: yaml.Node) -> PluginOption:
    fields = _mapping(node)
    flags = {callback: fields.get(callback.value) for callback in Callback}
    disabled = [callback for callback, flag in flags.items() if not _flag(flag)]
    arguments = _mapping(fields.get("arguments"))
    return PluginOption(
        _text(fields.get("name")),
        tuple(sorted(disabled)),
        {key: _text(value) for key, value in arguments.items()},
    )


# -- YAML with the semantics of Go's decoder for typed fields -------------------------------------


def _mapping(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The fields by name; the last one of a name counts."""
    if node is None or _is_null(node):
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise _mismatch(node, "a mapping")
    return dict(_fields(node))


def _fields(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    for key, value in node.value:
        if key.tag == f"{_PREFIX}merge":
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for mapping in reversed(merged):
                yield from _mapping(mapping).items()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != f"{_PREFIX}merge":
            yield str(key.value), value


def _sequence(node: yaml.Node | None) -> list[yaml.Node]:
    if node is None or _is_null(node):
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise _mismatch(node, "a list")
    return list(node.value)


def _text(node: yaml.Node | None) -> str:
    if node is None or _is_null(node):
        return ""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _TEXT_TAGS:
        raise _mismatch(node, "a text")
    return str(node.value)


def _flag(node: yaml.Node | None) -> bool:
    """True if absent."""
    if node is None or _is_null(node):
        return True
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    value = _BOOLEANS.get(str(node.value).lower()) if plain else None
    if value is None:
        raise _mismatch(node, "a boolean")
    return value


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == f"{_PREFIX}null")


def _mismatch(node: yaml.Node, wanted: str) -> ConfSyntaxError:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        found = f'"{node.value}"'
    else:
        found = "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
    return ConfSyntaxError(f"yaml: line {line}: expected {wanted}, found {found}")


class LoadedConf(NamedTuple):
    """The configuration of batch sessions in use."""

    spec: SessionSpec
    fault: str = ""
    """Why the default replaces the file; empty if the file is used."""
    warnings: tuple[str, ...] = ()
    """Settings without effect, a line each."""


def load_conf(settings: BatchSettings, registry: SessionRegistry) -> LoadedConf:
    """Load the file and resolve its names; kube-batch's default replaces an unreadable file.

    Raises :class:`ConfError`, one line with the file's name, for an unknown action or plugin. In
    compatibility mode unknown plugins are skipped, as in kube-batch.
    """
    fault = ""
    try:
        text = DEFAULT_CONF
        if settings.conf:
            text = read_limited(Path(settings.conf)).decode("utf-8-sig")
        conf = parse_conf(text, registry.action_names)
    except (OSError, UnicodeDecodeError, ConfSyntaxError) as error:
        fault = str(error) if isinstance(error, ConfSyntaxError) else f"cannot be read: {error}"
        conf = parse_conf(DEFAULT_CONF, registry.action_names)
    except UnknownActionError as error:
        known = registry.action_names
        raise ConfError(
            f'{settings.conf}: unknown action "{error.name}"; {suggestion(error.name, known)}'
        ) from None
    warnings = _unknown_plugins(settings, conf, registry)
    spec = SessionSpec(
        scheduler_name=settings.scheduler_name,
        actions=conf.actions,
        tiers=conf.tiers,
        default_queue=settings.default_queue,
        compatibility=settings.compatibility,
        period_s=settings.period.total_seconds(),
    )
    where = f"{settings.conf}: {fault}; kube-batch's default configuration is used"
    return LoadedConf(spec, where if fault else "", warnings)


def _unknown_plugins(
    settings: BatchSettings, conf: SessionConf, registry: SessionRegistry
) -> tuple[str, ...]:
    known = registry.plugin_names
    unknown = [name for name in conf.plugin_names if name not in known]
    if unknown and settings.compatibility is not Compatibility.KUBE_BATCH:
        name = unknown[0]
        raise ConfError(f'{settings.conf}: unknown plugin "{name}"; {suggestion(name, known)}')
    return tuple(f'{settings.conf}: unknown plugin "{name}" is skipped' for name in unknown)
