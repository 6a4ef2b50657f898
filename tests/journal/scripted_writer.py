"""A process that claims the journal named on its command line, and appends on request.

For each line on its input it appends a batch, and prints its numbers or the error.
"""

from __future__ import annotations

import sys

import anyio

from asched.journal import JournalError, open_journal
from tests.journal.samples import turn


async def obey(url: str, name: str) -> None:
    async with open_journal(url) as store:
        epoch = await store.claim(name, claimed_at_ns=1)
        print(f"epoch {epoch}", flush=True)
        async for line in anyio.wrap_file(sys.stdin):
            try:
                appended = await store.append(turn(int(line)), written_at_ns=int(line))
                print(f"records {appended.first_seq} to {appended.last_seq}", flush=True)
            except JournalError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    anyio.run(obey, sys.argv[1], sys.argv[2])
