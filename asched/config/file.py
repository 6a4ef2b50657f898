"""The configuration file: a KubeSchedulerConfiguration, an AschedConfiguration, or both.

The documents can be in any order, and missing ones have defaults. All errors of the file are
reported, each as one line: file, line, document, path in the document, and what is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from types import MappingProxyType

import msgspec

from asched.batch.registry import SessionRegistry
from asched.config import kube_scheduler as kube_config
from asched.config import settings as config_settings
from asched.config.batch import ConfError, load_conf
from asched.config.feature_gates import resolve_gates
from asched.config.kube_scheduler import KubeSchedulerConfiguration, decode_with_problems
from asched.config.plugin_settings import apply_plugin_settings, group_cycle_problems
from asched.config.registry import PluginRegistry
from asched.config.resolve import (
    OptionalPlugins,
    find_ineffective,
    resolve_with_problems,
)
from asched.config.settings import AschedConfiguration
from asched.config.yaml import Document, YamlError, parse_documents, read_limited
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.runtime.strict import Problem, StrictDecoder, nearest, quote
from asched.framework.sessions import SessionSpec

_API_VERSIONS = {
    kube_config.KIND: kube_config.API_VERSION,
    config_settings.KIND: config_settings.API_VERSION,
}

NO_GATES: Mapping[str, bool] = MappingProxyType({})

_ENTRY_DEPTH = 5
"""Length of the shortest path to an entry of a profile, ``profiles[0].pluginConfig[0].args``."""


class ConfigFileError(ValueError):
    """The file is invalid; ``lines`` holds one error each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class Configuration(msgspec.Struct, frozen=True):
    """The complete configuration of the daemon."""

    scheduler: KubeSchedulerConfiguration
    settings: AschedConfiguration
    profiles: tuple[ProfileSpec, ...]
    warnings: tuple[str, ...] = ()
    """Settings without effect, a line each."""
    sessions: tuple[SessionSpec, ...] = ()
    """Specifications of batch sessions, in the order of ``batch``."""
    faults: tuple[str, ...] = ()
    """Files that cannot be used and were replaced by defaults, a line each."""
    feature_gates: FeatureGates = DEFAULT_FEATURE_GATES


def load(
    path: FilePath | None, registry: PluginRegistry, gates: Mapping[str, bool] = NO_GATES
) -> Configuration:
    """Read and resolve the file; without a path, all defaults.

    ``gates``: those of ``--feature-gates``, which override ``featureGates``. Raises
    :class:`ConfigFileError` with all errors.
    """
    if path is None:
        return parse("", "(defaults)", registry, gates, empty_is_defaults=True)
    return parse(read_text(path), str(path), registry, gates)


def read_text(path: FilePath) -> str:
    """The text of a file. Raises :class:`ConfigFileError`."""
    try:
        return read_limited(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigFileError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(
            [f"{path}: not UTF-8 text: {error.reason} at byte {error.start}"]
        ) from None


def parse_yaml(text: str, name: str) -> list[Document]:
    """The documents of a file. Raises :class:`ConfigFileError`."""
    try:
        return parse_documents(text)
    except YamlError as error:
        place = f"{name}:{error.line}" if error.line else name
        raise ConfigFileError([f"{place}: not valid YAML: {error}"]) from None


def parse(
    text: str,
    name: str,
    registry: PluginRegistry,
    gates: Mapping[str, bool] = NO_GATES,
    *,
    empty_is_defaults: bool = False,
    reads_files: bool = True,
) -> Configuration:
    """As :func:`load`, from text; ``name`` is the file in messages.

    ``reads_files``: whether the text may name other files. Otherwise each is an error.
    """
    documents = parse_yaml(text, name)
    if not documents and not empty_is_defaults:
        raise ConfigFileError([f"{name}: no document; expected kind {' or '.join(_API_VERSIONS)}"])
    reader = _Reader(name, registry, gates, reads_files=reads_files)
    numbered = [*enumerate(documents, 1)]
    # asched's settings first: they define which plugins of profiles are optional.
    for number, document in sorted(numbered, key=lambda entry: not _is_asched(entry[1].value)):
        reader.read(number, document)
    return reader.configuration()


class _Reader:
    """Decodes the documents of one file and collects their errors."""

    def __init__(
        self,
        name: str,
        registry: PluginRegistry,
        gates: Mapping[str, bool],
        *,
        reads_files: bool = True,
    ) -> None:
        self._name = name
        self._reads_files = reads_files
        self._given_gates = gates
        self._registry = registry
        self._errors: list[str] = []
        self._errors_in: dict[int, list[str]] = {}
        self._optional = OptionalPlugins()
        self._warnings: list[str] = []
        self._numbers: dict[str, int] = {}
        self._scheduler = KubeSchedulerConfiguration()
        self._profiles: tuple[ProfileSpec, ...] | None = None
        self._settings = AschedConfiguration()
        self._sessions: tuple[SessionSpec, ...] = ()
        self._faults: tuple[str, ...] = ()
        self._gates = DEFAULT_FEATURE_GATES
        self._gate_errors: list[Problem] = []
        self._use_gates({})  # those of the command line, until an AschedConfiguration is read

    def read(self, number: int, document: Document) -> None:
        kind, problem = _kind(document.value)
        problems = [*document.problems, *([problem] if problem else [])]
        if kind in self._numbers:
            first = self._numbers[kind]
            problems.append(Problem(("kind",), f"document {first} already has kind {kind}"))
        elif kind:
            self._numbers[kind] = number
            problems += self._decode(kind, number, document)
        self._errors_in[number] = self._lines(number, document, problems)

    def configuration(self) -> Configuration:
        self._errors += [f"--feature-gates: {problem}" for problem in self._gate_errors]
        for number in sorted(self._errors_in):
            self._errors += self._errors_in[number]
        if self._settings.batch and self._profiles is None:
            # With batch sessions only, another scheduler places all other pods.
            self._profiles = ()
        if self._profiles is None and not self._errors:
            self._profiles, problems = resolve_with_problems(
                self._scheduler, self._registry, self._optional, self._gates
            )
            self._errors += [f"{self._name}: default configuration: {p}" for p in problems]
        if self._profiles is not None and not self._errors:
            self._apply_settings(self._profiles)
            problems_of_groups = group_cycle_problems(self._profiles, self._scheduler.extenders)
            self._errors += [f"{self._name}: {problem}" for problem in problems_of_groups]
        self._read_sessions()
        if self._errors or self._profiles is None:
            raise ConfigFileError(self._errors)
        return Configuration(
            scheduler=self._scheduler,
            settings=self._settings,
            profiles=self._profiles,
            warnings=tuple(self._warnings),
            sessions=self._sessions,
            faults=self._faults,
            feature_gates=self._gates,
        )

    def _apply_settings(self, profiles: tuple[ProfileSpec, ...]) -> None:
        settings = self._settings.plugins
        found = apply_plugin_settings(profiles, self._registry, settings)
        self._profiles = found.profiles
        self._errors += [f"{self._name}: {error}" for error in found.errors]
        missing = self._optional.missing
        self._warnings += [
            f"{self._name}: without optional plugin {name}: {why}" for name, why in missing.items()
        ]
        self._warnings += [f"{self._name}: {warning}" for warning in found.warnings]
        enabled = {name for profile in profiles for name in profile.plugin_names}
        self._warnings += [
            f"{self._name}: plugins: no effect: plugin {plugin.name} is enabled in no profile"
            for plugin in settings
            if plugin.name not in enabled and plugin.name not in missing
        ]

    def _read_sessions(self) -> None:
        if not self._settings.batch:
            return
        registry, found = SessionRegistry.discover(), []
        profile_names = {profile.scheduler_name for profile in self._profiles or ()}
        for settings in self._settings.batch:
            name = settings.scheduler_name
            if name in profile_names:
                self._errors.append(f'{self._name}: batch: "{name}" is also a profile')
            if settings.conf and not self._reads_files:
                self._errors.append(
                    f"{self._name}: batch: conf: files are not read here; leave it out"
                )
                continue
            try:
                found.append(load_conf(settings, registry))
            except ConfError as error:
                self._errors.append(f"{self._name}: batch: {error}")
        self._sessions = tuple(conf.spec for conf in found)
        self._faults = tuple(conf.fault for conf in found if conf.fault)
        self._warnings += [warning for conf in found for warning in conf.warnings]

    def _decode(self, kind: str, number: int, document: Document) -> list[Problem]:
        if kind == config_settings.KIND:
            decoder = StrictDecoder()
            self._settings = (
                decoder.decode(document.value, AschedConfiguration) or AschedConfiguration()
            )
            self._optional = OptionalPlugins(p.name for p in self._settings.plugins if p.optional)
            return [*decoder.problems, *self._use_gates(self._settings.feature_gates)]
        config, problems = decode_with_problems(document.value)
        if config is None:
            return problems
        self._scheduler = config
        self._profiles, found = resolve_with_problems(
            config, self._registry, self._optional, self._gates
        )
        if problems:
            # Invalid entries were dropped and must not be reported as missing.
            seen = {problem.path for problem in problems}
            found = [p for p in found if len(p.path) >= _ENTRY_DEPTH and p.path not in seen]
        if not problems and not found:
            ineffective = find_ineffective(config, self._registry, self._gates)
            self._warnings += self._lines(number, document, ineffective)
        return problems + found

    def _use_gates(self, in_file: Mapping[str, bool]) -> list[Problem]:
        """The problems of gates in the file. Those of the command line are kept."""
        given = self._given_gates
        self._gates, found = resolve_gates({**in_file, **given}, self._registry)
        self._gate_errors = [Problem(p.path[1:], p.message) for p in found if p.path[1] in given]
        return [problem for problem in found if problem.path[1] not in given]

    def _lines(self, number: int, document: Document, problems: Iterable[Problem]) -> list[str]:
        located = document.located(problems)
        return [f"{self._name}:{line}: document {number}: {problem}" for line, problem in located]


def _is_asched(value: object) -> bool:
    return isinstance(value, dict) and value.get("kind") == config_settings.KIND


def _kind(value: object) -> tuple[str | None, Problem | None]:
    """The kind of a document; None with the problem if it is unknown."""
    listed = " or ".join(_API_VERSIONS)
    if not isinstance(value, dict):
        return None, Problem((), f"expected a mapping with apiVersion and kind {listed}")
    kind, version = value.get("kind"), value.get("apiVersion")
    if kind is None:
        return None, Problem(("kind",), f"required; expected {listed}")
    if not isinstance(kind, str) or kind not in _API_VERSIONS:
        guess = nearest(str(kind), _API_VERSIONS)
        hint = f"did you mean {guess}?" if guess else f"expected {listed}"
        return None, Problem(("kind",), f"unknown value {quote(kind)}; {hint}")
    wanted = _API_VERSIONS[kind]
    if version is None:
        return kind, Problem(("apiVersion",), f"required; expected {wanted}")
    # The decoders report other types, and KubeSchedulerConfiguration's also other versions.
    if isinstance(version, str) and version != wanted and kind == config_settings.KIND:
        return kind, Problem(("apiVersion",), f"expected {wanted}, got {quote(version)}")
    return kind, None
