"""The shapes of requests and answers as OpenAPI tells them, and the models that check the rarer requests.

Edge only: inside, values are those of `postroom.model` and `postroom.views`. What a job may be submitted with is
checked by `postroom.drafting`, as it is for every door; here it is described.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import models_json_schema

from postroom.api.problems import MEDIA_TYPE
from postroom.api.queries import Params
from postroom.plaintext import UNSAFE

Label = Annotated[str, Field(min_length=1, max_length=200, pattern=f"^[^{UNSAFE}]*$")]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Seconds = Annotated[float, Field(gt=0, lt=1e9)]
StateName = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Asked(BaseModel):
    """A request: what is not known is refused."""

    model_config = ConfigDict(extra="forbid")


# ---- jobs: requests


_NULL: JsonValue = {"type": "null"}
_CONTENT_OR_ITEMS: list[JsonValue] = [
    {"required": ["content"], "properties": {"content": {"not": _NULL}, "items": _NULL, "item_keys": _NULL}},
    {"required": ["items"], "properties": {"content": _NULL, "items": {"type": "array"}}},
]


class Submission(Asked):
    """A job: `content` or `items`, never both; all else has a default."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"oneOf": _CONTENT_OR_ITEMS})

    kind: Label = Field("assistant", description="Picks the handler.")
    content: Any = Field(None, description="Any JSON value but null.")
    items: Annotated[list[Any], Field(min_length=1, max_length=200_000)] | None = Field(
        None, description="Any JSON values, each handled and kept on its own."
    )
    item_keys: list[Label] | None = Field(
        None, description='As many as items, all different; else "0", "1", …'
    )
    sender: Label | None = Field("unknown", description="Where it came from, as you say it.")
    topic: Label | None = "default"
    priority: Literal["high", "normal", "low"] | None = "normal"
    queue: Label | None = "default"
    run_at: Time | None = Field(None, description="Not before.")
    expires_at: Time | None = Field(None, description="Cancelled if it has not started by then.")
    max_attempts: Annotated[int, Field(ge=1, le=1000)] | None = None
    timeout_seconds: Seconds | None = Field(None, description="Of one whole run.")
    stall_timeout_seconds: Seconds | None = Field(None, description="Without new progress.")
    allow_failed_items: Annotated[float, Field(ge=0, lt=1e9)] | None = Field(
        None, description="A number, or a share below 1."
    )
    params: dict[str, JsonValue] | None = Field(None, description="Options for the handler.")
    metadata: dict[str, JsonValue] | None = Field(None, description="Your own.")


class KeyedSubmission(Submission):
    """A job of a batch."""

    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="As the header is for a single job."
    )


class Batch(Asked):
    """Many jobs."""

    jobs: Annotated[list[KeyedSubmission], Field(max_length=10_000)]


class CancelBody(Asked):
    """Why; may be left out altogether."""

    reason: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class EmptyBody(Asked):
    """Nothing; may be left out altogether."""


_GROUP = ("kind", "code", "message", "since")
_IDS_OR_GROUP: list[JsonValue] = [
    {"required": ["job_ids"], "properties": {"job_ids": {"type": "array"}, **dict.fromkeys(_GROUP, _NULL)}},
    {
        "properties": {"job_ids": _NULL},
        "anyOf": [{"required": [name], "properties": {name: {"not": _NULL}}} for name in _GROUP],
    },
]


class ReplayBody(Asked):
    """Either `job_ids`, or the group: `kind`, `code`, `message` (as the group shows it), `since`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"oneOf": _IDS_OR_GROUP})

    job_ids: Annotated[list[str], Field(min_length=1, max_length=10_000)] | None = None
    kind: Label | None = None
    code: Annotated[str, Field(max_length=200)] | None = None
    message: Annotated[str, Field(max_length=10_000)] | None = None
    since: Time | None = None
    canary: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="So many first; the rest when they have succeeded."
    )
    per_second: Annotated[float, Field(gt=0, lt=1e6)] | None = None


# ---- jobs: answers


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Accepted(BaseModel):
    """The job's id and state."""

    job_id: JobId
    state: StateName


class BatchAnswer(BaseModel):
    """An accepted job (`status` 202), or a problem."""

    status: int
    job_id: JobId | None = None
    state: str | None = None
    replayed: bool | None = None


class BatchAnswers(BaseModel):
    """One answer per job, in order."""

    answers: list[BatchAnswer]


class JobError(BaseModel):
    """Why a run did not succeed."""

    code: str
    message: str
    detail: Any
    epoch: int
    attempt: int


class Waiting(BaseModel):
    """Why a queued job is not running."""

    reason: Literal["run_at", "gate", "no_worker", "turn"]
    gate: str | None
    until: Time | None
    text: str


class Job(BaseModel):
    """A job as it stands."""

    job_id: JobId
    state: StateName
    kind: str
    sender: str
    topic: str
    priority: Literal["high", "normal", "low"]
    queue: str
    done: int
    total: int
    failed_items: int
    result: Any
    result_url: str | None
    error: JobError | None
    last_error: JobError | None
    stale: bool
    waiting_for: Waiting | None
    reason: str | None
    attempts: int
    max_attempts: int
    crashes: int
    crashes_in_row: int
    interruptions: int
    holds: int
    replays: int
    epoch: int
    worker: str | None
    cancel_requested: bool
    created_at: Time
    updated_at: Time
    run_at: Time
    started_at: Time | None
    finished_at: Time | None
    expires_at: Time | None
    lease_expires_at: Time | None
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    params: dict[str, Any]
    metadata: dict[str, Any]
    usage: dict[str, float] | None


class JobList(BaseModel):
    """A part of a listing."""

    items: list[Job]
    next_cursor: str | None


class Item(BaseModel):
    """One item; a pending one may show the error of its last try."""

    key: str
    index: int
    state: Literal["pending", "succeeded", "failed"]
    value: Any
    error: dict[str, Any] | None
    usage: dict[str, float] | None = None


class ItemList(BaseModel):
    """A part of a job's items, in order."""

    items: list[Item]
    next_cursor: str | None


class PayloadItem(BaseModel):
    """An item's key and input."""

    key: str
    input: Any


class Payload(BaseModel):
    """`content` or `items`."""

    content: Any = None
    items: list[PayloadItem] | None = None


class AnyJson(BaseModel):
    """Stands for any JSON value."""


class EventStream(BaseModel):
    """Stands for a stream of server-sent events, each a journal line."""


class JournalLine(BaseModel):
    """One line of a job's journal."""

    n: int
    at: Time
    event: str
    from_: StateName | None = Field(alias="from")
    to: StateName
    epoch: int
    attempt: int
    life: int
    actor: str
    reason: str | None
    data: dict[str, Any]


class JournalPage(BaseModel):
    """Lines of a journal, in order."""

    items: list[JournalLine]
    next_cursor: None


class DeadLetterGroup(BaseModel):
    """Failed jobs of one cause."""

    kind: str
    code: str
    message: str
    count: int
    first_at: Time
    last_at: Time
    job_ids: list[JobId]


class DeadLetterGroups(BaseModel):
    """Groups, largest first."""

    groups: list[DeadLetterGroup]


class Replayed(BaseModel):
    """How many jobs were accepted for replay."""

    replayed: int


# ---- operations


class Stats(BaseModel):
    """Counts by state, and the last hour."""

    states: dict[str, int]
    oldest_due_seconds: float | None
    mean_seconds: float | None
    p95_seconds: float | None
    succeeded_last_hour: int
    failed_last_hour: int
    failure_ratio: float | None
    stale: int
    last_claimed_at: Time | None


class Health(BaseModel):
    """Whether the inbox can take and give work."""

    status: Literal["ok", "unavailable"]
    store: str
    durability: str
    last_claimable_seconds: float | None
    version: str
    now: Time
    detail: str | None = None


class WorkerBody(Asked):
    """A worker as it introduces itself."""

    worker: Label
    kinds: Annotated[list[Label], Field(max_length=1000)]
    queues: Annotated[list[Label], Field(min_length=1, max_length=100)] = ["default"]
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    host: Annotated[str, Field(max_length=255)] = ""
    pid: Annotated[int, Field(ge=0, lt=2**63)] = 0
    version: Annotated[str, Field(max_length=100)] = ""
    up_seconds: Annotated[float, Field(ge=0, lt=1e9)] = Field(0, description="How long ago it started.")


class WorkerEntry(BaseModel):
    """A live worker."""

    worker: str
    kinds: list[str]
    queues: list[str]
    concurrency: int
    host: str
    pid: int
    version: str
    is_local: bool
    started_at: Time
    seen_at: Time
    job_ids: list[JobId]


class WorkerList(BaseModel):
    """Live workers."""

    items: list[WorkerEntry]
    next_cursor: None


# ---- leases


class ClaimBody(Asked):
    """Who asks for work, and for what."""

    worker: Annotated[str, Field(min_length=1, max_length=200)]
    kinds: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=1000)
    ]
    queues: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100)
    ] = ["default"]
    limit: Annotated[int, Field(ge=1, le=1000)] = 1
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=60)] = 0


class Lease(BaseModel):
    """A right to a job under one epoch, with all that its handler needs; `content` or `items`."""

    model_config = ConfigDict(extra="allow")
    job_id: JobId
    epoch: int
    attempt: int
    life: int
    kind: str
    sender: str
    topic: str
    content: Any = None
    items: list[PayloadItem] | None = None
    params: dict[str, Any]
    metadata: dict[str, Any]
    checkpoints: dict[str, Any]
    steps: dict[str, Any]
    allow_failed_items: float | None
    lease_seconds: float
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    max_attempts: int


class Leases(BaseModel):
    """What a claim gave."""

    now: Time
    next_due_at: Time | None
    leases: list[Lease]


class Write(BaseModel):
    """What every write of a worker names and may carry."""

    job_id: str
    epoch: int
    checkpoints: dict[str, Any] | None = Field(None, description='By item key: {"value"} or {"error"}.')
    steps: dict[str, Any] | None = Field(None, description='By name: {"input_digest", "value"}.')
    output: list[Any] | None = None
    usage: dict[str, float] | None = None
    limits: dict[str, float | None] | None = Field(
        None, description="The handler's, where the job says nothing."
    )


class Beat(Write):
    """A heartbeat of one run."""

    done: int | None = None
    total: int | None = None
    seq: int | None = Field(
        None, description="Counts the beats of an epoch from 1: a repeat adds nothing twice."
    )
    lease_seconds: float | None = None


class Beats(Asked):
    """Heartbeats."""

    beats: list[Beat]


class Outcome(Write):
    """How one run ended."""

    outcome: Literal["succeeded", "failed", "held", "released", "cancelled", "crashed"]
    result: Any = None
    error: dict[str, Any] | None = Field(
        None, description='{"code", "message", "detail", "permanent": false}'
    )
    after_seconds: float | None = None
    reason: str | None = None


class Outcomes(Asked):
    """Ends of runs."""

    outcomes: list[Outcome]


class LeaseAnswer(BaseModel):
    """The answer to one entry."""

    job_id: str | None
    epoch: int | None
    state: StateName | None
    detail: str | None


class BeatAnswer(LeaseAnswer):
    """The answer to one heartbeat."""

    status: Literal["ok", "cancel_requested", "lease_lost", "conflict", "invalid"]


class BeatAnswers(BaseModel):
    """One answer per beat, in order."""

    answers: list[BeatAnswer]
    now: Time


class SettleAnswer(LeaseAnswer):
    """The answer to one outcome."""

    status: Literal["ok", "lease_lost", "conflict", "invalid"]


class SettleAnswers(BaseModel):
    """One answer per outcome, in order."""

    answers: list[SettleAnswer]
    now: Time


# ---- what a route says of itself

_REF = "#/components/schemas/"
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}}
_MEANINGS = {
    403: "A page of another origin asks for a change.",
    404: "No such job.",
    409: "The state of the job, or the key's first use, forbids it.",
    410: "Retention removed the job.",
    413: "Larger than the limit; names limit and size.",
    415: "Not JSON.",
    421: "Not asked for as this machine.",
    422: "Something is wrong; `errors` names each field.",
    503: "The store cannot be reached; nothing is half-written.",
    507: "The store has no room left; nothing was written.",
}
_MODELS: dict[str, type[BaseModel]] = {"Problem": Problem}

_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key and body again give the first job again; another body is refused (409).",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_WAIT_HEADER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`wait=N`: hold the answer back for up to N seconds, at most 60.",
    "schema": {"type": "string", "examples": ["wait=10"]},
}


def documented(
    body: type[BaseModel] | None,
    status: int,
    answer: type[BaseModel] | None,
    other_status: int | None = None,
    other_answer: type[BaseModel] | None = None,
    *,
    params: Params | None = None,
    finds: bool = False,
    refuses: bool = False,
    waits: bool = False,
    submits: bool = False,
) -> dict[str, Any]:
    """The keywords of a route that tell OpenAPI what it takes and gives.

    Args:
        body: of the request.
        status: of the usual answer, whose model is ``answer``; likewise the other one.
        params: its query parameters.
        finds: it may answer 404 and 410; ``refuses``: 409.
        waits: it takes ``Prefer: wait``.
        submits: it takes an ``Idempotency-Key``, and may refuse (409).
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for code, model in ((status, answer), (other_status, other_answer)):
        if code is not None:
            responses[code] = _response(model)
    if answer is EventStream:
        responses[204] = {"description": "The end was seen already."}
    codes = [421, 422, 503, 507]
    codes += [404, 410] if finds else []
    codes += [409] if refuses or submits else []
    codes += [403, 413, 415] if body is not None or status == 204 else []
    for code in codes:
        responses.setdefault(code, {"description": _MEANINGS[code], **_PROBLEM})
    headers = [_KEY_HEADER] if submits else []
    headers += [_WAIT_HEADER] if waits or other_answer is Job else []
    extra: dict[str, Any] = {"parameters": [*(params.openapi() if params else ()), *headers]}
    if body is not None:
        extra["requestBody"] = {
            "required": body not in (CancelBody, EmptyBody),
            "content": {"application/json": {"schema": {"$ref": _REF + _known(body)}}},
        }
    return {"status_code": status, "response_model": None, "responses": responses, "openapi_extra": extra}


def _response(model: type[BaseModel] | None) -> dict[str, Any]:
    if model is None:
        return {"description": "Done."}
    said = (model.__doc__ or "").partition("\n")[0]
    if model is AnyJson:
        return {"description": "The result.", "content": {"application/json": {"schema": {}}}}
    if model is EventStream:
        return {"description": said, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"description": said, "content": {"application/json": {"schema": {"$ref": _REF + _known(model)}}}}


def _known(model: type[BaseModel]) -> str:
    _MODELS[model.__name__] = model
    return model.__name__


def components() -> dict[str, Any]:
    """The schemas of all models that routes named."""
    asked = [(m, "validation" if issubclass(m, Asked) else "serialization") for m in _MODELS.values()]
    _, top = models_json_schema(asked, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    found: dict[str, Any] = top["$defs"]
    return found
