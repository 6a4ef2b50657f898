"""A process that appends to the journal named on its command line until it is killed.

Prints the last sequence number of each batch once the append has returned.
"""

from __future__ import annotations

import sys

import anyio

from asched.journal import open_journal
from tests.journal.samples import turn


async def write(url: str) -> None:
    async with open_journal(url) as store:
        await store.claim("endless", claimed_at_ns=1)
        number = (await store.head()).batch
        while True:
            number += 1
            appended = await store.append(turn(number, number % 50), written_at_ns=number)
            sys.stdout.write(f"{appended.last_seq}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(write, sys.argv[1])
