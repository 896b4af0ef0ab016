"""Without keys: only this machine is answered, by its own names, and no page of another origin changes anything."""

from __future__ import annotations

import httpx2
import pytest

from postroom.api.guard import LoopbackGuard, check_bind, refuse
from postroom.errors import SettingsInvalid


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "127.0.0.1", "localhost", "LocalHost:1", "[::1]", "[::1]:8000"]
)
async def test_loopback_names_are_answered(client, host):
    assert (await client.get("/stats", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost.",
        "127.0.0.1:8000:80",
        "127.0.0.1@evil.example",
        "localhost:80x",
        "192.168.0.1",
        "0.0.0.0",
        "::1",
        "",
    ],
)
async def test_other_names_are_not_answered(client, host):
    answer = await client.get("/stats", headers={"Host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_second_host_is_not_answered(client):
    headers = [("Host", "127.0.0.1"), ("Host", "evil.example")]
    assert (await client.get("/stats", headers=headers)).status_code == 421


def scope(server: tuple[str, int | None] | None) -> dict[str, object]:
    return {"type": "http", "method": "GET", "headers": [(b"host", b"127.0.0.1")], "server": server}


def test_a_connection_that_came_in_elsewhere_is_not_answered():
    assert refuse(scope(("192.168.1.7", 8000)))[0] == 421
    assert refuse(scope(("::", 8000)))[0] == 421
    assert refuse(scope(("127.0.0.1", 8000))) is None
    assert refuse(scope(("::1", 8000))) is None
    assert refuse(scope(("/run/postroom.sock", None))) is None
    assert refuse(scope(None)) is None


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "http://localhost:8000"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "file://"},
    {"Origin": "https://127.0.0.1:8000@evil.example"},
    {"Origin": "http://[::1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_a_foreign_page_changes_nothing(client, caller, headers, method):
    path = {"POST": "/jobs", "DELETE": "/workers/w1", "PUT": "/jobs"}[method]
    answer = await client.request(method, path, json={"content": 1}, headers=headers)
    assert answer.status_code == 403
    assert not (await client.get("/jobs")).json()["items"]


async def test_a_foreign_page_cancels_nothing_without_a_body_either(client, caller):
    job_id = await caller.submit()
    answer = await client.post(f"/jobs/{job_id}/cancel", headers={"Origin": "https://evil.example"})
    form = await client.post(f"/jobs/{job_id}/cancel", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, form.status_code) == (403, 415)
    assert (await caller.job(job_id))["state"] == "queued"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "http://127.0.0.1:8000"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}],
)
async def test_its_own_page_may_change(client, headers):
    assert (await client.post("/jobs", json={"content": 1}, headers=headers)).status_code == 202


async def test_no_other_origin_is_allowed_to_read(client):
    answer = await client.get("/jobs", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await client.options("/jobs", headers={"Origin": "https://evil.example"})).status_code == 405


async def test_a_key_that_is_sent_does_no_harm(client):
    assert (await client.get("/jobs", headers={"Authorization": "Bearer x"})).status_code == 200


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, *FOREIGN])
async def test_without_the_guard_all_of_this_passes(app, headers):
    """The control: it is the guard that refuses, and nothing else would."""
    app.user_middleware = [m for m in app.user_middleware if m.cls is not LoopbackGuard]
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        assert (await client.post("/jobs", json={"content": 1}, headers=headers)).status_code == 202


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com", ""])
def test_it_does_not_listen_where_others_can_reach_it(host):
    with pytest.raises(SettingsInvalid, match="loopback"):
        check_bind(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_it_listens_on_loopback(host):
    check_bind(host)
