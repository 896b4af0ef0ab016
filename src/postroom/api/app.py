"""The app: an inbox behind HTTP.

``create_app`` puts the routes of every resource together; doors of other protocols are handed in, since they stand
above this room. The app speaks to `postroom.verbs` and knows neither store nor state rule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from starlette.responses import RedirectResponse

from postroom import __version__
from postroom.api import problems, reference, schemas
from postroom.api.answers import json_answer
from postroom.api.guard import LoopbackGuard
from postroom.api.heads import Heads
from postroom.api.routes import dead_letters, events, jobs, leases, operations
from postroom.api.service import Service
from postroom.inbox import Inbox
from postroom.settings import Settings

DESCRIPTION = (
    "An inbox for AI work that is never lost, never paid for twice, and always says where it stands. "
    "Errors are problem documents (RFC 9457). There are no access keys yet: the service answers on this machine only."
)


def create_app(inbox: Inbox, settings: Settings, *, doors: Sequence[APIRouter] = ()) -> FastAPI:
    """The app over an inbox.

    Args:
        inbox: opened at the app's start and closed at its end; left alone where it was open already.
        settings: the limits in force.
        doors: routers of other protocols (`postroom.doors`).
    """
    service = Service(inbox, settings)
    app = FastAPI(
        title="Postroom",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lambda app: _lifespan(service),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for router in (jobs.router, events.router, dead_letters.router, leases.router, operations.router, *doors):
        app.include_router(router)
    _describe(app)
    problems.install(app)
    app.add_middleware(Heads)
    app.add_middleware(LoopbackGuard)
    return app


@asynccontextmanager
async def _lifespan(service: Service) -> AsyncIterator[None]:
    was_open = service.inbox.is_open
    service.stopping.clear()
    await service.verbs()
    try:
        yield
    finally:
        service.stop()
        if not was_open:
            await service.inbox.close()


def _describe(app: FastAPI) -> None:
    """OpenAPI at ``/openapi.json`` and as a page at ``/docs``."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            made.setdefault("components", {})["schemas"] = schemas.components()
            app.openapi_schema = made
        return app.openapi_schema

    async def document(request: Request) -> Response:
        return json_answer(app.openapi())

    async def page(request: Request) -> Response:
        return HTMLResponse(reference.page(app.openapi()), headers=reference.HEADERS)

    async def home(request: Request) -> Response:
        return RedirectResponse("/docs", 307)

    app.openapi = openapi  # type: ignore[method-assign]
    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/docs", page, include_in_schema=False)
    app.add_route("/", home, include_in_schema=False)
