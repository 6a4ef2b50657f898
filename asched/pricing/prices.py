"""The file format of prices (``docs/how-to/costs.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import yaml

from asched.config.file import ConfigFileError, parse_yaml, read_text
from asched.config.kube_scheduler import Section
from asched.framework.runtime.strict import StrictDecoder, quote
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    Amounts,
    amounts,
)

API_VERSION: Final = "asched.dev/v1"
KIND: Final = "Prices"

Price = Annotated[float, msgspec.Meta(ge=0)]


class NodePrice(Section, frozen=True, omit_defaults=True):
    """The price of the nodes with these labels."""

    per_hour: Price
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """All of them must be equal; empty matches every node."""


class WaitPrice(Section, frozen=True, omit_defaults=True):
    """What an hour without a node costs, for each of these pods."""

    per_hour: Price
    namespace: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Prices(Section, frozen=True, omit_defaults=True):
    """Prices in one currency. Of several rules that match, the first one counts."""

    api_version: str
    kind: str
    resources: dict[str, Price]
    """By the hour: of a core, of a GiB of memory or storage, of one unit of anything else."""
    currency: str = ""
    nodes: tuple[NodePrice, ...] = ()
    waits: tuple[WaitPrice, ...] = ()
    """Other pods wait for nothing."""

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION or self.kind != KIND:
            raise ValueError(
                f"expected apiVersion {API_VERSION} and kind {KIND},"
                f" got {quote(self.api_version)} and {quote(self.kind)}"
            )
        if not any(self.resources.values()):
            raise ValueError("resources: expected the price of at least one resource, such as cpu")

    def node_per_hour(self, node: Node) -> float:
        """The price of a node: that of the first rule that matches its labels, else the sum of its
        allocatable resources."""
        for rule in self.nodes:
            if _has(node.metadata.labels, rule.labels):
                return rule.per_hour
        return self._sum(amounts(node.status.allocatable))

    def wait_per_hour(self, pod: Pod) -> float:
        """What an hour without a node costs for a pod; 0 if no rule matches it."""
        for rule in self.waits:
            if (
                rule.namespace in (None, pod.metadata.namespace)
                and rule.priority_class in (None, pod.spec.priority_class_name)
                and _has(pod.metadata.labels, rule.labels)
            ):
                return rule.per_hour
        return 0.0

    def requests_per_hour(self, requests: Amounts, node: Node) -> float:
        """The part of a node's price that these requests account for.

        The price is divided among the node's resources in proportion to ``resources``, as cost
        allocation of OpenCost does, and within each resource by the requested share.
        """
        whole = self._sum(amounts(node.status.allocatable))
        return self.node_per_hour(node) * self._sum(requests) / whole if whole else 0.0

    def _sum(self, found: Amounts) -> float:
        return sum(
            amount / _unit(name) * self.resources[name]
            for name, amount in found.items()
            if name in self.resources
        )


def read_prices(file: Path) -> Prices:
    """The prices in a file. Raises ConfigFileError with a line for each mistake."""
    return parse_prices(read_text(file), str(file))


def parse_prices(text: str, name: str) -> Prices:
    """As :func:`read_prices`, from text; ``name`` is the file in messages."""
    documents = parse_yaml(text, name)
    if len(documents) != 1:
        raise ConfigFileError([f"{name}: expected one document of kind {KIND}"])
    document, decoder = documents[0], StrictDecoder()
    found = None if document.problems else decoder.decode(document.value, Prices)
    problems = [*document.problems, *decoder.problems]
    if found is None or problems:
        raise ConfigFileError(f"{name}:{line}: {one}" for line, one in document.located(problems))
    return found


def prices_text(prices: Prices) -> str:
    """A file with these prices."""
    text: str = yaml.safe_dump(msgspec.to_builtins(prices), sort_keys=False, allow_unicode=True)
    return text


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def _unit(resource: str) -> int:
    """The amount that has the price, in the unit of :mod:`asched.model.requests`."""
    if resource == CPU:
        return 1000
    if resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith(HUGEPAGES_PREFIX):
        return 1 << 30
    return 1
