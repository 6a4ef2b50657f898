"""A leader that cannot reach the API server stops before its lease expires."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.world import world
from tests.replicas.pair import Journals, pair
from tests.replicas.proxy import Proxy

RENEW_DEADLINE_S = 2.0
NOISE_S = 0.5
"""The clock of a process and that of a test are read at different times on a busy machine. With
this the lease has not run out yet."""


async def test_isolated_leader_is_replaced(journals: Journals, tmp_path: Path) -> None:
    async with world(tmp_path, nodes=4, cpu="16") as w:
        proxy = Proxy(w.server.url)
        async with proxy.running():
            through = proxy.kubeconfig(w.kubeconfig, tmp_path / "through.yaml")
            async with pair(w, tmp_path, journals, kubeconfigs=(through, w.kubeconfig)) as p:
                leader, standby = p.replicas
                await p.start(leader)
                await p.bind_all(20)
                await p.start(standby)
                # Some are on their way when the cut comes, and answers are lost.
                p.add(100)
                await w.until(lambda: len(p.ledger.bindings) > 30)
                await proxy.cut()
                p.add(20)
                assert await leader.ended() == 1, leader.process.output
                assert leader.process.lines[-1].startswith("asched: leadership lost"), (
                    leader.process.output
                )
                await p.bind_all(20)
                assert p.leader is standby
                cut_at_s = proxy.cut_at_s
                assert cut_at_s is not None
                last_s = max(proxy.binding_sent_s, default=cut_at_s)
                assert last_s - cut_at_s < RENEW_DEADLINE_S + NOISE_S
                p.check()
