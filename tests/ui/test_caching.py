"""What browsers may keep."""

from __future__ import annotations

import re

from tests.ui.serving import ui_on


async def test_static_files_are_kept_for_ever_under_a_name_with_their_hash(
    demo_journal: str,
) -> None:
    async with ui_on(demo_journal) as client:
        async with client.session.get("/") as page:
            text = await page.text()
            assert page.headers["Cache-Control"] == "no-store"
        paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', text)
        assert {path.split("/")[2] for path in paths} == {paths[0].split("/")[2]}
        assert re.fullmatch(r"[0-9a-f]{16}", paths[0].split("/")[2])
        for path in paths:
            async with client.session.get(path) as response:
                assert response.status == 200
                assert "immutable" in response.headers["Cache-Control"]
        async with client.session.get("/static/0000000000000000/style.css") as response:
            assert response.status == 404
            assert response.headers["Cache-Control"] == "no-store"


async def test_answer_about_a_record_is_sent_once(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client:
        await client.caught_up()
        address = "/api/v1/cluster?seq=50"
        async with client.session.get(address) as response:
            tag = response.headers["ETag"]
            assert response.headers["Cache-Control"] == "private, no-cache"
        async with client.session.get(address, headers={"If-None-Match": tag}) as response:
            assert response.status == 304
            assert await response.read() == b""
        other = "/api/v1/cluster?seq=51"
        async with client.session.get(other, headers={"If-None-Match": tag}) as response:
            assert response.status == 200


async def test_answer_about_now_is_not_kept(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client:
        await client.caught_up()
        for path in ("/cluster", "/cluster?at=2000-01-01", "/cluster?seq=999999999", "/overview"):
            async with client.session.get("/api/v1" + path) as response:
                assert response.headers["Cache-Control"] == "no-store"
                assert "ETag" not in response.headers


async def test_server_time_is_reported(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client, client.session.get("/journal") as response:
        assert re.fullmatch(r"total;dur=\d+\.\d", response.headers["Server-Timing"])
