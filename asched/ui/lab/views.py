"""Pages and API of the what-if lab.

Everything that starts or cancels a run is a POST that :class:`~asched.ui.lab.forgery.ForgeryCheck`
accepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from asched.audit.lookup import AuditError
from asched.audit.recorded_configuration import recorded_configuration
from asched.audit.visibility import EVERYTHING, AnswerScope
from asched.audit.whatif.comparison import ReportRow, figure_rows
from asched.audit.whatif.scenarios import scenario_schema
from asched.config.schema import configuration_schema
from asched.model.node import Node
from asched.pricing.prices import Prices, prices_text
from asched.ui.api import HTML_PAGES, PREFIX, VIEW, json_response
from asched.ui.errors import RequestError
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader
from asched.ui.journal_view import JournalView
from asched.ui.lab.forgery import TOKEN_FIELD, TOKEN_HEADER, ForgeryCheck
from asched.ui.lab.requests import (
    LabCheck,
    LabForm,
    check_form,
    resolve,
)
from asched.ui.lab.results import LabResult, ListedResult
from asched.ui.lab.runs import LabRun, LabRuns, LabSettings
from asched.ui.openapi import Operation
from asched.ui.questions import VISIBLE, Question
from asched.ui.tables import csv_of

MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_FIELDS: Final = 20
_MAX_NODE_NAMES: Final = 500
_SHOWN_PODS: Final = 50
_CHECKS: Final = 2
"""Validations at a time."""
_EXAMPLE: Final = Path(__file__).parent / "example.yaml"
_OFF: Final = "the what-if lab is off: start asched ui with --lab-workers 1 or more"


class LabOverview(msgspec.Struct, frozen=True, rename="camel"):
    """The state of the lab."""

    form_token: str
    """Needed to start and cancel runs, as the header ``X-Asched-Form-Token``."""
    workers: int
    prices: Prices | None
    """Those of new results. Without them, results have no costs."""
    runs: tuple[LabRun, ...]
    """Since the start of the server, the newest first."""
    results: tuple[ListedResult, ...]
    """Stored results, the newest first."""


class RecordedConfiguration(msgspec.Struct, frozen=True, rename="camel"):
    """The configuration of decisions at a moment, as a file."""

    seq: int
    text: str


class Lab:
    """What the handlers share."""

    def __init__(self, view: JournalView, settings: LabSettings) -> None:
        self.view = view
        self.settings = settings
        self.runs = LabRuns(settings)
        self.forgery = ForgeryCheck()
        self._checks = asyncio.Semaphore(_CHECKS)

    async def check(self, form: LabForm) -> LabCheck:
        async with self._checks:
            return await asyncio.to_thread(check_form, form, self.view.registry)

    async def start(self, form: LabForm) -> LabRun:
        """Raises :class:`RequestError` for the first problem of the form, AuditError, BusyError."""
        found = await self.check(form)
        for problem in found.problems:
            where = f"{problem.field}:{problem.line}" if problem.line else problem.field
            raise RequestError(f"{where}: {problem.message}")
        name = self.view.name
        sealed = await self.view.ask(lambda reader: resolve(form, reader, name))
        return await self.runs.start(sealed.release(EVERYTHING))

    async def overview(self) -> LabOverview:
        results = await asyncio.to_thread(self.runs.store.listed, self.view.prices)
        return LabOverview(
            form_token=self.forgery.token,
            workers=self.settings.workers,
            prices=self.view.prices,
            runs=tuple(self.runs.recent()),
            results=tuple(results),
        )


LAB: Final = web.AppKey("lab", Lab)


def _lab(request: web.Request) -> Lab:
    """Raises :class:`AuditError` if the lab is off."""
    lab = request.app.get(LAB)
    if lab is None:
        raise AuditError(_OFF)
    return lab


# -- requests -------------------------------------------------------------------------------------


async def _body(request: web.Request) -> bytes:
    """Raises HTTPRequestEntityTooLarge, RequestError."""
    content = bytearray()
    async for part in request.content.iter_any():
        content += part
        if len(content) > MAX_REQUEST_BYTES:
            raise RequestError(f"the request is larger than {MAX_REQUEST_BYTES >> 10} KiB")
    return bytes(content)


async def _json_form(request: web.Request) -> LabForm:
    """The form that a program sends. Raises RequestError, ForbiddenError."""
    _lab(request).forgery.check(request, request.headers.get(TOKEN_HEADER, ""))
    if request.content_type != "application/json":
        raise RequestError("Content-Type: expected application/json")
    try:
        return msgspec.json.decode(await _body(request), type=LabForm)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not a form of the lab: {error}") from None


async def _page_fields(request: web.Request) -> dict[str, str]:
    """The fields that a page sends. Raises RequestError, ForbiddenError."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise RequestError("Content-Type: expected application/x-www-form-urlencoded")
    try:
        text = (await _body(request)).decode()
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise RequestError("the body is not a form") from None
    fields = {name: value.replace("\r\n", "\n") for name, value in pairs}
    _lab(request).forgery.check(request, fields.pop(TOKEN_FIELD, ""))
    return fields


# -- API ------------------------------------------------------------------------------------------


async def _get_overview(request: web.Request) -> web.Response:
    return json_response(await _lab(request).overview())


async def _post_check(request: web.Request) -> web.Response:
    return json_response(await _lab(request).check(await _json_form(request)))


async def _post_run(request: web.Request) -> web.Response:
    form = await _json_form(request)
    return json_response(await _lab(request).start(form))


async def _get_run(request: web.Request) -> web.Response:
    return json_response(_run(request))


def _run(request: web.Request) -> LabRun:
    run = _lab(request).runs.find(request.match_info["id"])
    if run is None:
        raise AuditError("no run of that id since the start of asched ui")
    return run


async def _post_cancel(request: web.Request) -> web.Response:
    lab = _lab(request)
    lab.forgery.check(request, request.headers.get(TOKEN_HEADER, ""))
    return json_response(await lab.runs.cancel(_run(request).id))


async def _get_result(request: web.Request) -> web.Response:
    found = await _result(request)
    if found is None:
        raise AuditError(_NO_RESULT)
    wanted = request.query.get("format", "json")
    if wanted == "json":
        return json_response(found)
    if wanted != "csv":
        raise RequestError(f"format: {wanted[:40]!r} is neither json nor csv")
    rows = [
        _FigureRow(row.label, row.values[0], row.values[1], row.change)
        for row in _figure_rows(found)
    ]
    disposition = {"Content-Disposition": f'attachment; filename="asched-lab-{found.id}.csv"'}
    return web.Response(text=csv_of(rows), content_type="text/csv", headers=disposition)


class _FigureRow(msgspec.Struct, frozen=True):
    figure: str
    baseline: str
    candidate: str
    change: str


_NO_RESULT: Final = "no result of that id: it was removed, or belongs to another asched ui"


async def _result(request: web.Request) -> LabResult | None:
    return await asyncio.to_thread(_lab(request).runs.store.load, request.match_info["id"])


def _figure_rows(found: LabResult) -> list[ReportRow]:
    report = found.report
    runs = [report.baseline, report.candidate, *([report.recorded] if report.recorded else [])]
    return figure_rows([run.figures for run in runs])


async def _get_schema(request: web.Request) -> web.Response:
    kind = request.query.get("kind", "configuration")
    if kind == "scenario":
        return json_response(await asyncio.to_thread(scenario_schema))
    if kind != "configuration":
        raise RequestError(f"kind: {kind[:40]!r} is neither configuration nor scenario")
    registry = request.app[VIEW].registry
    return json_response(await asyncio.to_thread(configuration_schema, registry))


async def _get_configuration(request: web.Request) -> web.Response:
    moment = Question.of(request).moment()
    sealed = await request.app[VIEW].ask(lambda reader: _recorded(reader, moment))
    return json_response(sealed.release(request[VISIBLE]))


async def _recorded(reader: JournalReader, moment: Moment) -> RecordedConfiguration:
    seq = await reader.seq_of(moment)
    return RecordedConfiguration(seq, await reader.on_state(seq, recorded_configuration))


# -- pages ----------------------------------------------------------------------------------------

_REFERRER: Final = {"Referrer-Policy": "same-origin"}
"""Without a referrer, browsers send forms with ``Origin: null``."""


def _page(request: web.Request, template: str, values: Mapping[str, Any]) -> web.Response:
    own = {"active": "/lab", "form_token": _lab(request).forgery.token, **values}
    response = request.app[HTML_PAGES].page(request, template, own)
    response.headers.update(_REFERRER)
    return response


async def _lab_page(request: web.Request) -> web.Response:
    lab = _lab(request)
    like = request.query.get("like", "")
    stored = await asyncio.to_thread(lab.runs.store.load, like)
    form = lab.runs.form(like) if stored is None else stored.request.form
    return await _form_page(request, form or LabForm(), LabCheck(()))


async def _form_page(
    request: web.Request, form: LabForm, check: LabCheck, error: str = ""
) -> web.Response:
    lab = _lab(request)
    overview = await lab.overview()
    values = {
        "script": "lab.js",
        "api": f"{PREFIX}/lab",
        "form": form,
        "check": check,
        "error": error,
        "example": _EXAMPLE.read_text(encoding="utf-8"),
        "lab": overview,
        "nodes": (await lab.view.ask(_node_names)).release(request[VISIBLE]),
        "keeps_results": lab.settings.keeps_results,
        "data": {"token": lab.forgery.token},
    }
    return _page(request, "lab.html", values)


async def _node_names(reader: JournalReader) -> list[str]:
    if reader.live is None:
        return []
    return sorted(reader.live.fold.state.objects(Node))[:_MAX_NODE_NAMES]


async def _start(request: web.Request) -> web.Response:
    fields = await _page_fields(request)
    try:
        form = msgspec.convert({k: v for k, v in fields.items() if v}, LabForm)
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is not a form of the lab: {error}") from None
    lab = _lab(request)
    check = await lab.check(form)
    if check.problems:
        response = await _form_page(request, form, check)
        response.set_status(400)
        return response
    try:
        run = await lab.start(form)
    except (AuditError, RequestError) as error:
        response = await _form_page(request, form, check, str(error))
        response.set_status(400)
        return response
    raise web.HTTPSeeOther(f"/lab/results/{run.id}")


async def _cancel(request: web.Request) -> web.Response:
    await _page_fields(request)
    run = _run(request)
    await _lab(request).runs.cancel(run.id)
    raise web.HTTPSeeOther(f"/lab/results/{run.id}")


async def _result_page(request: web.Request) -> web.Response:
    lab = _lab(request)
    run = lab.runs.find(request.match_info["id"])
    if run is not None and run.active:
        values = {
            "script": "lab-run.js",
            "api": f"{PREFIX}/lab/runs/{run.id}",
            "run": run,
            "data": {"run": run.id},
        }
        return _page(request, "lab-run.html", values)
    found = await _result(request)
    if found is not None:
        return _page(request, "lab-result.html", _result_values(found))
    if run is None:
        raise AuditError(_NO_RESULT)
    return _page(request, "lab-run.html", {"run": run, "api": f"{PREFIX}/lab/runs/{run.id}"})


class _PodTable(NamedTuple):
    """Pods that differ."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    total: int


def _result_values(found: LabResult) -> dict[str, Any]:
    report = found.report
    return {
        "script": "lab-result.js",
        "api": f"{PREFIX}/lab/results/{found.id}",
        "found": found,
        "rows": _figure_rows(found),
        "tables": _pod_tables(found),
        "command": found.request.command,
        "prices": prices_text(found.request.prices) if found.request.prices else "",
        "shown_pods": _SHOWN_PODS,
        "data": {"source": f"{PREFIX}/lab/results/{found.id}", "begin": report.begin.isoformat()},
    }


def _pod_tables(found: LabResult) -> list[_PodTable]:
    report, omitted = found.report, found.omitted
    first, second = report.baseline.name, report.candidate.name
    elsewhere = [(p.pod, p.baseline, p.candidate) for p in report.placed_elsewhere[:_SHOWN_PODS]]
    count = len(report.placed_elsewhere) + omitted.placed_elsewhere
    columns = ("Pod", first, second)
    tables = [_PodTable("elsewhere", "Placed on different nodes", columns, elsewhere, count)]
    for name, title, other in (
        ("baseline", f"Placed only by: {first}", second),
        ("candidate", f"Placed only by: {second}", first),
    ):
        field = f"placed_in_{name}_only"
        pods = getattr(report, field)
        rows = [(p.pod, p.node, p.message) for p in pods[:_SHOWN_PODS]]
        columns = ("Pod", "Node", f"Message of: {other}")
        count = len(pods) + getattr(omitted, field)
        tables.append(_PodTable(name, title, columns, rows, count))
    return tables


# -- routes ---------------------------------------------------------------------------------------

_ID: Final = "{id:[0-9a-f]{24}}"

OPERATIONS: Final = (
    Operation("get", "/lab", "The what-if lab: runs and stored results.", LabOverview),
    Operation("post", "/lab/check", "Check a form without running it.", LabCheck, LabForm),
    Operation("post", "/lab/runs", "Start a comparison, or find its result.", LabRun, LabForm),
    Operation("get", "/lab/runs/{id}", "The progress of a run.", LabRun),
    Operation("post", "/lab/runs/{id}/cancel", "Cancel a run.", LabRun),
    Operation("get", "/lab/results/{id}", "A result, as asched diff reports it.", LabResult),
    Operation(
        "get", "/lab/configuration", "The recorded configuration as a file.", RecordedConfiguration
    ),
)
_HANDLERS: Final = {
    ("get", "/lab"): _get_overview,
    ("post", "/lab/check"): _post_check,
    ("post", "/lab/runs"): _post_run,
    ("get", "/lab/runs/{id}"): _get_run,
    ("post", "/lab/runs/{id}/cancel"): _post_cancel,
    ("get", "/lab/results/{id}"): _get_result,
    ("get", "/lab/configuration"): _get_configuration,
}


SCOPES: Final[Mapping[str, AnswerScope]] = {
    **{PREFIX + path: AnswerScope.CLUSTER for _, path in _HANDLERS},
    f"{PREFIX}/config-schema": AnswerScope.PUBLIC,
    "/lab": AnswerScope.CLUSTER,
    "/lab/results/{id}": AnswerScope.CLUSTER,
    "/lab/runs": AnswerScope.CLUSTER,
    "/lab/runs/{id}/cancel": AnswerScope.CLUSTER,
}
"""A run reads the pods of all namespaces."""


def register(app: web.Application, view: JournalView, settings: LabSettings | None) -> None:
    """Serve the lab. Without settings the pages say that it is off."""
    if settings is not None and settings.workers:
        lab = app[LAB] = Lab(view, settings)
        app.on_shutdown.append(lambda _: lab.runs.close())
    router = app.router
    for (method, path), handler in _HANDLERS.items():
        router.add_route(method, PREFIX + path.replace("{id}", _ID), handler)
    router.add_get(f"{PREFIX}/config-schema", _get_schema)
    router.add_get("/lab", _lab_page)
    router.add_get(f"/lab/results/{_ID}", _result_page)
    router.add_post("/lab/runs", _start)
    router.add_post(f"/lab/runs/{_ID}/cancel", _cancel)
