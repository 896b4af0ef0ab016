"""`/inbox/tasks`, word for word."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from postroom.api import problems
from postroom.api.answers import json_answer
from postroom.api.bodies import read_object
from postroom.api.queries import CURSOR, LIMIT, NO_PARAMS, Param, Params, label, one_of, sent_key
from postroom.api.routes.jobs import accept, known_id, live
from postroom.api.schemas import documented
from postroom.api.service import service_of
from postroom.doors.inbox import translate
from postroom.doors.inbox.wire import Task, TaskAccepted, TaskBody, TaskList
from postroom.errors import JobNotFound, JobPurged, ResultMissing
from postroom.model import JsonText
from postroom.stores.port import Query
from postroom.verbs import Verbs
from postroom.views import JobView

router = APIRouter(prefix="/inbox/tasks", tags=["inbox"])

_LIST = Params(
    Param(
        "status",
        one_of(*translate.STATES),
        "Only tasks of this status.",
        {"type": "string", "enum": list(translate.STATES)},
    ),
    label("sender", "Only from this sender."),
    label("topic", "Only of this topic."),
    LIMIT,
    CURSOR,
)


@router.post("", **documented(TaskBody, 201, TaskAccepted, submits=True))
async def post_task(request: Request) -> Response:
    """Leave a task for the assistant."""
    service = service_of(request)
    NO_PARAMS.read(request)
    key = sent_key(request)
    body, size = await read_object(request, service.body_bytes)
    receipt = await accept(service, translate.job_fields(body), size, key)
    headers = {"Location": f"/inbox/tasks/{receipt.job_id}"}
    if receipt.is_replayed:
        headers["Idempotency-Replayed"] = "true"
    shown = {"task_id": receipt.job_id, "status": translate.STATUSES[receipt.state]}
    return json_answer(shown, 201, headers)


@router.get("", **documented(None, 200, TaskList, params=_LIST))
async def list_tasks(request: Request) -> Response:
    """Tasks, oldest first, each whole."""
    asked = _LIST.read(request)
    verbs = await service_of(request).verbs()
    query = Query(
        states=() if asked["status"] is None else (translate.STATES[asked["status"]],),
        sender=asked["sender"],
        topic=asked["topic"],
        limit=asked["limit"],
        cursor=asked["cursor"],
        oldest_first=True,
    )
    page = await verbs.find(query)
    items = []
    for view in page.jobs:
        try:
            items.append(translate.task(view, await verbs.payload(view.job_id), await _result(verbs, view)))
        except (JobNotFound, JobPurged):  # retention removed it after the page was read
            continue
    return json_answer({"items": items, "next_cursor": page.next_cursor})


async def _result(verbs: Verbs, view: JobView) -> JsonText | None:
    """The whole result of a job that ended; None where there is none."""
    if not view.is_final:
        return None
    try:
        return "".join([piece async for piece in verbs.result(view.job_id)])
    except ResultMissing:
        return None


@router.get("/{task_id}", **documented(None, 200, Task, finds=True))
async def get_task(request: Request, task_id: str) -> Response:
    """One task, whole."""
    service = service_of(request)
    NO_PARAMS.read(request)
    verbs = await service.verbs()
    try:
        view = await verbs.get(known_id(task_id), with_result=False)
        shown = translate.task(view, await verbs.payload(task_id), await _result(verbs, view))
    except JobNotFound as error:
        return problems.answer(problems.problem(error) | {"detail": "no such task"})
    return json_answer(shown, 200, await live(service, view))
