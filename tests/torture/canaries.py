"""Secrets that must never appear where anyone but asched reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

TOKEN = "canary-token-5f0c1d7a"
JOURNAL_PASSWORD = "canary-journal-93be22c4"
VARIABLE = "canary-variable-7d11ea60"

CANARIES: Mapping[str, str] = {
    "the token of the kubeconfig": TOKEN,
    "the password of the journal's URL": JOURNAL_PASSWORD,
    "a variable of the environment": VARIABLE,
}


def leaks(content: bytes, where: str) -> list[str]:
    """A line for each secret in the content."""
    return [
        f"{where} shows {what}" for what, secret in CANARIES.items() if secret.encode() in content
    ]


def leaks_in_files(files: Iterator[Path]) -> list[str]:
    return [line for file in sorted(files) for line in leaks(file.read_bytes(), file.name)]
