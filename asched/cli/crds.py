"""``asched crds``: the CustomResourceDefinitions that batch sessions read."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Final

import typer

from asched.cli.errors import BadInput
from asched.cli.main import command_app

app = command_app("Print the CustomResourceDefinitions of PodGroups and Queues.")

GROUPS: Final = (
    "scheduling.incubator.k8s.io",
    "scheduling.sigs.dev",
    "scheduling.volcano.sh",
)
"""The API groups, each in a manifest of its name."""


@app.command(name="crds")
def crds(
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Only of this API group; may be given again."),
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions of PodGroups and Queues.

    For kubectl: asched crds | kubectl apply -f -
    """
    unknown = [name for name in group or () if name not in GROUPS]
    if unknown:
        raise BadInput(f"asched: no API group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    typer.echo("---\n".join(manifest(name) for name in group or GROUPS), nl=False)


def manifest(group: str) -> str:
    """The YAML of one API group's definitions."""
    return (files("asched") / "manifests" / f"{group}.yaml").read_text(encoding="utf-8")
