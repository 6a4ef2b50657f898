"""Runs kubectl if it is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from asched.apiserver.http import ApiServer

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed here")


class Kubectl:
    """Runs kubectl with its own kubeconfig and an empty home directory."""

    def __init__(self, server: ApiServer, home: Path) -> None:
        self.server = server
        self.home = home
        self.config = server.kubeconfig(home / "config")

    async def run(self, *arguments: str, stdin: str = "", config: Path | None = None) -> str:
        """Standard output; fails the test if kubectl fails."""
        code, printed, said = await self.tried(*arguments, stdin=stdin, config=config)
        assert code == 0, said
        return printed

    async def tried(
        self, *arguments: str, stdin: str = "", config: Path | None = None
    ) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        assert KUBECTL is not None
        done = await anyio.run_process(
            [KUBECTL, *arguments],
            input=stdin.encode(),
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "KUBECONFIG": str(config or self.config),
            },
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    async def columns(self, *arguments: str) -> list[str]:
        """The header of the printed table."""
        printed = await self.run(*arguments)
        return [part.strip() for part in printed.splitlines()[0].split("  ") if part.strip()]
