"""The door's shapes, as OpenAPI tells them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from postroom.api.schemas import Asked, JobId, Label, Time

Status = Literal["pending", "processing", "done", "failed", "cancelled"]
PriorityName = Literal["high", "normal", "low"]


class TaskBody(Asked):
    """A task for the assistant."""

    content: Any = Field(
        description="The text; any JSON value but null.", json_schema_extra={"not": {"type": "null"}}
    )
    sender: Label | None = "unknown"
    topic: Label | None = Field("default", description="Shapes what the assistant does.")
    priority: PriorityName | None = "normal"


class TaskAccepted(BaseModel):
    """The task's id and status."""

    task_id: JobId
    status: Status


class Task(BaseModel):
    """A task as it stands, whole."""

    id: JobId
    sender: str
    topic: str
    content: Any
    priority: PriorityName
    status: Status
    created_at: Time
    updated_at: Time
    attempts: int
    result: str | None = Field(description="Text; other values as JSON text.")
    error: str | None = Field(description="The latest failure; null after success.")


class TaskList(BaseModel):
    """A part of a listing, oldest first."""

    items: list[Task]
    next_cursor: str | None
