"""A request must be whole in time, headers and body; and a service that ends is not held up by who waits."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom.api.serving import guarded_h11, guarded_httptools, make_server
from postroom.errors import SettingsInvalid
from postroom.settings import Settings
from tests.api.live import QUICK, LiveService, live_service

DEADLINE = 0.4
DRIPS = 0.05
PROTOCOLS = {"httptools": guarded_httptools, "h11": guarded_h11}


@pytest.fixture(params=PROTOCOLS)
def hurried(request: pytest.FixtureRequest) -> Iterator[LiveService]:
    """A service whose deadline can be waited for."""
    with live_service(protocol=PROTOCOLS[request.param](DEADLINE)) as live:
        yield live


def drip(port: int, head: bytes, drop: bytes, seconds: float) -> tuple[bytes, float]:
    """Send the head at once and then a drop every little while; what came back, and after how long the end came."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(DRIPS)
        started = time.monotonic()
        answer = b""
        connection.sendall(head)
        while time.monotonic() - started < seconds:
            try:
                piece = connection.recv(65536)
                answer += piece
                if not piece:
                    return answer, time.monotonic() - started
            except TimeoutError:
                pass
            except ConnectionResetError:
                return answer, time.monotonic() - started
            try:
                connection.sendall(drop)
            except OSError:
                continue  # closed at the other end: what it said can still be read
    return answer, float("inf")


SLOW = {
    "silence": (b"", b""),
    "headers": (b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-A: b\r\n"),
    "one header": (b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ", b"a"),
    "empty lines": (b"\r\n", b"\r\n"),
    "a body": (
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n",
        b" ",
    ),
    "a chunked body": (
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_request_that_does_not_become_whole_is_closed(hurried, name):
    head, drop = SLOW[name]
    answer, seconds = drip(hurried.port, head, drop, 20 * DEADLINE)
    assert seconds < 20 * DEADLINE
    assert answer.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))  # h11 takes empty lines for no HTTP at all
    assert b"application/problem+json" in answer


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
def test_without_the_deadline_it_is_held_for_ever(protocol):
    """The control: uvicorn's own protocols let a request drip for as long as it likes."""
    with live_service(protocol=protocol) as live:
        _, seconds = drip(live.port, *SLOW["a body"], 4 * DEADLINE)
    assert seconds == float("inf")


async def test_a_request_that_is_whole_may_be_answered_late(hurried):
    async with httpx2.AsyncClient(base_url=hurried.url, trust_env=False) as client:
        wait = {"Prefer": f"wait={2 * DEADLINE}"}
        posted = await client.post("/jobs", json={"content": 1}, headers=wait)
        assert posted.status_code == 202
        await asyncio.sleep(
            1.5 * DEADLINE
        )  # the connection idles past the deadline: it runs for requests only
        [connection] = client._transport._pool.connections
        assert (await client.get(posted.headers["location"])).status_code == 200
        assert client._transport._pool.connections == [connection]


async def test_a_second_request_on_a_connection_has_the_same_deadline(hurried):
    reader, writer = await asyncio.open_connection("127.0.0.1", hurried.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    writer.write(b"GET /health HTTP/1.1\r\n")
    async with asyncio.timeout(20 * DEADLINE):
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_headers_without_end_are_refused(protocol):
    with live_service(protocol=PROTOCOLS[protocol](30)) as live:
        head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        answer, seconds = drip(live.port, head, b"X-A: " + b"b" * 8000 + b"\r\n", 20)
    assert seconds < 20
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_what_is_no_http_is_a_problem_too(hurried):
    answer, _ = drip(hurried.port, b"GARBAGE\r\n\r\n", b"", 20 * DEADLINE)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


def test_a_body_too_large_is_answered_before_it_is_sent(live):
    head = (
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999999\r\nConnection: close\r\n\r\n"
    )
    answer, seconds = drip(live.port, head, b"", 10)
    assert seconds < 10
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"limit":10485760' in answer


async def test_a_client_that_sends_too_much_can_read_why(live):
    async with httpx2.AsyncClient(base_url=live.url, trust_env=False) as client:
        answer = await client.post("/jobs", json={"content": "x" * 30_000_000})
        assert answer.status_code == 413
        assert (await client.get("/health")).status_code == 200


async def test_a_service_that_ends_lets_go_of_those_who_wait():
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        with live_service() as live:
            posted = await client.post(f"{live.url}/jobs", json={"kind": "note", "content": 1})
            path = f"{live.url}{posted.headers['location']}"
            claim = {"worker": "w", "kinds": ["other"], "wait_seconds": 60}
            waits = [
                asyncio.create_task(client.get(path, headers={"Prefer": "wait=60"})),
                asyncio.create_task(client.get(f"{path}/events", headers={"Last-Event-ID": "0"})),
                asyncio.create_task(client.get(f"{path}/journal?after=0", headers={"Prefer": "wait=60"})),
                asyncio.create_task(client.post(f"{live.url}/leases/claim", json=claim)),
            ]
            hub = (await live.inbox.verbs()).store._hub
            async with asyncio.timeout(10):
                while sum(map(len, hub._watches.values())) < len(waits):
                    await asyncio.sleep(0.01)  # until all four are being held back
            asked_at = time.monotonic()
            live.server.should_exit = True
            answers = await asyncio.gather(*waits)
    assert time.monotonic() - asked_at < 10
    assert [answer.status_code for answer in answers] == [202, 200, 200, 200]
    assert answers[3].json()["leases"] == []


def test_it_does_not_start_where_others_can_reach_it():
    with pytest.raises(SettingsInvalid, match="loopback"):
        make_server(object(), Settings(host="0.0.0.0"))  # type: ignore[arg-type]


def test_it_starts_on_the_port_of_the_settings(free_port):
    with live_service(Settings(**{**QUICK.__dict__, "port": free_port})) as live:
        assert live.port == free_port
