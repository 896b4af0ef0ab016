"""The keyless mode: who may speak to the inbox while there are no access keys.

Whoever can reach the service may do everything, so it is reached from this machine only, and a page in a browser on
this machine must not be able to use it either. Three ways are closed: another address (it listens on loopback, and a
request that came in elsewhere is refused), another name for this address (a page that rebinds its own name to
127.0.0.1 sends that name as ``Host``), and a foreign page's form or script (which sends an ``Origin``, or a content
type that is not JSON).
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.api import problems
from postroom.errors import SettingsInvalid

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def is_loopback(host: str) -> bool:
    """Whether an address (or ``localhost``) can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str) -> None:
    """Raises:
    SettingsInvalid: listening there would let others in, and there are no keys to keep them out.
    """
    if not is_loopback(host):
        raise SettingsInvalid(
            f"host is {host!r}: there are no access keys yet, so the inbox listens on loopback only; use 127.0.0.1, "
            "and reach it from elsewhere through a tunnel or a proxy that knows who may"
        )


class LoopbackGuard:
    """Refuses what does not come from this machine, and changes that a foreign page sends. See the module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = refuse(scope)
            if refusal is not None:
                status, detail = refusal
                await problems.answer(problems.http_problem(status, detail))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def refuse(scope: Scope) -> tuple[int, str] | None:
    """The status and the sentence of a refusal; None for what may pass."""
    hosts: list[str] = []
    origin: str | None = None
    site = content_type = ""
    has_body = False
    for name, value in scope["headers"]:
        if name == b"host":
            hosts.append(value.decode("latin-1").lower())
        elif name == b"origin":
            origin = value.decode("latin-1").lower()
        elif name == b"sec-fetch-site":
            site = value.decode("latin-1")
        elif name == b"content-type":
            content_type = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            has_body = True
    if not _is_local(scope) or len(hosts) != 1 or _name_of(hosts[0]) not in LOOPBACK_NAMES:
        return 421, _FOREIGN_HOST
    if scope["method"] not in _CHANGES:
        return None
    if (origin is not None and _authority(origin) != hosts[0]) or site in ("cross-site", "same-site"):
        return 403, _FOREIGN_PAGE
    if (has_body or content_type) and not _is_json(content_type):
        return 415, "send JSON, and say so: Content-Type: application/json"
    return None


_FOREIGN_HOST = (
    "without access keys this service answers only on this machine: "
    "ask for it as 127.0.0.1, localhost or [::1], on a connection over loopback"
)
_FOREIGN_PAGE = (
    "without access keys no change is taken from a page of another origin; "
    "send it from a program, without an Origin header"
)


def _is_local(scope: Scope) -> bool:
    """False where the connection is known to have come in at an address that is not loopback."""
    server = scope.get("server")
    if not server or server[1] is None:
        return True
    try:
        return ipaddress.ip_address(server[0]).is_loopback
    except ValueError:
        return True


def _name_of(host: str) -> str:
    """The host without its port; a port must be a number."""
    name, colon, port = host.rpartition(":")
    if colon and not name.endswith(":") and (port.isdecimal() or not port) and not host.endswith("]"):
        return name
    return host


def _authority(origin: str) -> str:
    """Host and port of an origin; nothing for ``null`` and what is none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in ("http", "https") else ""


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )
