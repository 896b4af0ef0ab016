"""What may not pass is refused with 422, wherever a body is read, and leaves nothing."""

from __future__ import annotations

import pytest

DEEP = 101

HOSTILE = {
    "empty": b"",
    "no JSON": b"{",
    "two values": b"{} {}",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "a comment": b'{"content": 1} // x',
    "a trailing comma": b'{"content": 1,}',
    "single quotes": b"{'content': 1}",
    "not UTF-8": b'{"content": "\xff"}',
    "overlong UTF-8": b'{"content": "\xc0\x80"}',
    "UTF-16": '{"content": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"content": 1}',
    "a surrogate in UTF-8": b'{"content": "\xed\xa0\x80"}',
    "a lone surrogate": b'{"content": "\\ud800"}',
    "a lone low surrogate": b'{"content": "x\\udc00y"}',
    "a surrogate in a key": b'{"content": {"\\ud800": 1}}',
    "a NUL": b'{"content": "a\\u0000b"}',
    "a NUL in a key": b'{"content": {"a\\u0000": 1}}',
    "a raw NUL": b'{"content": "a\x00b"}',
    "a raw newline": b'{"content": "a\nb"}',
    "NaN": b'{"content": NaN}',
    "infinity": b'{"content": Infinity}',
    "minus infinity": b'{"content": [-Infinity]}',
    "a number past floats": b'{"content": 1e999}',
    "a long number past floats": b'{"content": ' + b"9" * 400 + b".0}",
    "an integer past 64 bits": b'{"content": 9223372036854775808}',
    "one below 64 bits": b'{"content": -9223372036854775809}',
    "an integer of 5,000 digits": b'{"content": ' + b"9" * 5000 + b"}",
    "a doubled key": b'{"content": 1, "content": 2}',
    "a doubled key inside": b'{"content": {"a": 1, "a": 1}}',
    "depth": b'{"content": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "depth of objects": b'{"content": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "absurd depth": b"[" * 200_000,
    "absurd depth that ends": b'{"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}

ADDRESSES = (
    "/jobs",
    "/jobs/batch",
    "/inbox/tasks",
    "/leases/claim",
    "/leases/heartbeat",
    "/leases/settle",
    "/dead-letters/replay",
    "/workers",
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies_are_refused(client, address, name):
    answer = await client.post(address, content=HOSTILE[name], headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"]
    assert not (await client.get("/jobs")).json()["items"]


BARELY = {
    "depth at its limit": b'{"content": ' + b"[" * 99 + b"]" * 99 + b"}",
    "the largest integer": b'{"content": 9223372036854775807}',
    "the smallest integer": b'{"content": -9223372036854775808}',
    "the largest float": b'{"content": 1.7976931348623157e308}',
    "a pair of surrogates": b'{"content": "\\ud83d\\ude00"}',
    "control characters": b'{"content": "\\u0001\\u001f\\u007f"}',
    "empty text": b'{"content": ""}',
    "false": b'{"content": false}',
    "noncharacters": '{"content": "\uffff\ufdd0"}'.encode(),
    "many short lists": b'{"content": [' + b",".join([b"[]"] * 1000) + b"]}",
}


@pytest.mark.parametrize("name", BARELY)
async def test_what_may_just_pass_passes_and_comes_back(client, name):
    answer = await client.post("/jobs", content=BARELY[name], headers={"Content-Type": "application/json"})
    assert answer.status_code == 202, answer.text
    import json

    back = await client.get(f"{answer.headers['location']}/payload")
    assert back.json() == json.loads(BARELY[name])


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/json",
        "application/jsonp",
    ],
)
async def test_a_body_that_does_not_say_it_is_json_is_refused(client, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await client.post("/jobs", content=b'{"content": 1}', headers=headers)
    assert answer.status_code == 415
    assert not (await client.get("/jobs")).json()["items"]


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_json_may_be_called_by_its_other_names(client, content_type):
    answer = await client.post("/jobs", content=b'{"content": 1}', headers={"Content-Type": content_type})
    assert answer.status_code == 202
