"""Any OpenAI-compatible endpoint: what is sent, what is understood, and what goes wrong becomes of a job."""

from __future__ import annotations

import asyncio
import json
import logging
from email.utils import formatdate

import pytest

from postroom.assistant.models import (
    ModelAnswerInvalid,
    ModelOptions,
    ModelServerError,
    ModelStreamBroken,
    ModelTimeout,
)
from postroom.assistant.openai import OpenAIModel
from postroom.errors import PermanentError, RetryLater
from tests.assistant.provider import STREAM_HEAD, echoes_json, event, provider, says, sends, status, word

KEY = "sk-very-secret-7f3a"
CONTENT = "my private diagnosis"
MESSAGES = [{"role": "user", "content": CONTENT}]


def model_at(url: str, **options) -> OpenAIModel:
    given = {"model_read_timeout_seconds": 5.0, "model_idle_timeout_seconds": 5.0, **options}
    return OpenAIModel(ModelOptions(model="big-1", model_url=url, model_key=KEY, **given))


async def failure_of(*behaviours, **options) -> tuple[Exception, int]:
    """The exception of one call, and how many requests it made."""
    async with provider(*behaviours) as server:
        model = model_at(server.url, **options)
        try:
            with pytest.raises(Exception) as caught:
                await model.complete(MESSAGES, request_id="job:0:x")
        finally:
            await model.close()
        return caught.value, server.calls


async def answer_of(*behaviours, **call):
    async with provider(*behaviours) as server:
        model = model_at(server.url)
        try:
            return await model.complete(MESSAGES, **call), server
        finally:
            await model.close()


# ---------------------------------------------------------------- what is sent and understood


async def test_a_streamed_answer_comes_with_its_model_and_its_cost():
    answer, _ = await answer_of(says("Hel", "lo"))
    assert (answer.text, answer.model, answer.finish_reason) == ("Hello", "big-1", "stop")
    assert (answer.usage.tokens_in, answer.usage.tokens_out, answer.usage.model_calls) == (11, 7, 1)


async def test_halves_of_a_character_are_joined_and_what_cannot_be_kept_is_left_out():
    def raw(text: str) -> bytes:
        return b'data: {"choices": [{"delta": {"content": "' + text.encode() + b'"}}]}\n\n'

    behaviour = sends(
        STREAM_HEAD, raw("a\\ud83d"), raw("\\ude00b"), raw("\\u0000c\\ud83d"), word(None, "stop")
    )
    answer, _ = await answer_of(behaviour)
    assert answer.text == "a😀bc\ufffd"


async def test_an_endpoint_that_does_not_stream_is_understood():
    body = {
        "model": "m",
        "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }
    answer, _ = await answer_of(status(200, body))
    assert (answer.text, answer.usage.tokens_in) == ("whole", 3)


async def test_a_call_carries_the_effect_key_and_our_key():
    _, server = await answer_of(says("ok"), request_id="job-1:0:summarize")
    headers = server.requests[0].headers
    assert headers["idempotency-key"] == headers["x-request-id"] == "job-1:0:summarize"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].path == "/v1/chat/completions"


async def test_a_request_id_of_any_characters_can_be_sent():
    _, server = await answer_of(says("ok"), request_id="job:订单 1\r\nEvil: yes:x")
    assert server.requests[0].headers["idempotency-key"].isascii()
    assert "evil" not in server.requests[0].headers


async def test_a_schema_is_sent_as_response_format():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    _, server = await answer_of(says("{}"), schema=schema)
    assert server.requests[0].body["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    ("url", "path"),
    [("", "/v1/chat/completions"), ("/", "/v1/chat/completions"), ("/api/v3", "/api/v3/chat/completions")],
)
async def test_a_bare_host_gets_v1_and_any_other_path_is_kept(url, path):
    async with provider(says("ok")) as server:
        model = model_at(server.url.removesuffix("/v1") + url)
        await model.complete(MESSAGES)
        await model.close()
    assert server.requests[0].path == path


async def test_fields_that_an_endpoint_refuses_are_left_out_from_then_on():
    def refuse(field):
        return status(400, {"error": {"message": f"Unsupported parameter: '{field}'"}})

    async with provider(
        refuse("stream_options"), refuse("max_tokens"), refuse("temperature"), says("ok")
    ) as server:
        model = model_at(server.url)
        assert (await model.complete(MESSAGES, request_id="id")).text == "ok"
        await model.complete(MESSAGES, request_id="id")
        await model.close()
    last = server.requests[-1]
    assert server.calls == 5
    assert not {"stream_options", "temperature", "max_tokens"} & set(last.body)
    assert last.body["max_completion_tokens"] == 1024
    ids = [request.headers["idempotency-key"] for request in server.requests]
    assert len(set(ids[:4])) == 4, "another body goes out under another key"
    assert ids[4] == ids[3], "the same body under the same"


async def test_a_schema_goes_into_the_prompt_where_response_format_is_refused():
    def answer(request):
        return "in prompt" if "JSON schema" in request.body["messages"][0]["content"] else "no"

    refuse = status(400, {"error": {"message": "response_format.type json_schema is not supported"}})
    answer, server = await answer_of(refuse, echoes_json(answer), schema={"type": "object"})
    assert answer.text == "in prompt"
    assert server.requests[-1].body["response_format"] == {"type": "json_object"}


async def test_a_refusal_that_repeats_itself_ends_as_permanent():
    refuse = status(
        400, {"error": {"message": "stream_options temperature max_tokens response_format: all bad"}}
    )
    error, calls = await failure_of(refuse)
    assert isinstance(error, PermanentError)
    assert calls <= 7


async def test_embeddings_come_back_in_order_and_of_length_one():
    body = {"data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}]}
    async with provider(status(200, body)) as server:
        model = model_at(server.url)
        vectors = await model.encode(["a", "b"])
        await model.close()
    assert vectors == [[0.6, 0.8], [0.0, 1.0]]
    assert server.requests[0].body["input"] == ["a", "b"]


async def test_two_hundred_calls_are_under_way_at_once():
    arrived = asyncio.Semaphore(0)
    everyone = asyncio.Event()

    async def wait_for_all(request, writer):
        arrived.release()
        await everyone.wait()
        await says("ok")(request, writer)

    async with provider(wait_for_all) as server:
        model = model_at(server.url)
        calls = [asyncio.create_task(model.complete(MESSAGES)) for _ in range(200)]
        for _ in range(200):
            await arrived.acquire()
        everyone.set()
        answers = await asyncio.gather(*calls)
        await model.close()
    assert [answer.text for answer in answers] == ["ok"] * 200


async def test_a_cancelled_call_hangs_up_at_once():
    async with provider(sends(STREAM_HEAD, word("and"), then="hang")) as server:
        model = model_at(server.url)
        call = asyncio.create_task(model.complete(MESSAGES))
        while not server.calls:
            await asyncio.sleep(0.01)  # until the request arrived
        call.cancel()
        await asyncio.wait_for(server.hung_up.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await call
        await model.close()


# ---------------------------------------------------------------- what goes wrong

HOLDS = {
    401: "key refused",
    403: "key refused",
    402: "quota spent",
    429: "rate limited",
    502: "answered 502",
    503: "answered 503",
    504: "answered 504",
    302: "redirect",
}
RETRIED = {408: ModelTimeout, 409: ModelServerError, 500: ModelServerError}
PERMANENT = (400, 404, 413, 422)


@pytest.mark.parametrize("code", HOLDS)
async def test_what_is_about_the_provider_or_our_key_is_a_hold(code):
    error, calls = await failure_of(status(code))
    assert isinstance(error, RetryLater)
    assert HOLDS[code] in error.reason
    assert error.after_seconds >= 8
    assert calls == 1


@pytest.mark.parametrize("code", RETRIED)
async def test_what_may_be_about_the_job_is_an_error_that_is_retried(code):
    error, calls = await failure_of(status(code))
    assert type(error) is RETRIED[code]
    assert calls == 1


@pytest.mark.parametrize("code", PERMANENT)
async def test_a_refused_request_is_permanent(code):
    error, calls = await failure_of(status(code, {"error": {"message": "no such thing", "code": "nope"}}))
    assert isinstance(error, PermanentError)
    assert error.code == f"model_{code}"
    assert error.detail == {"status": code, "code": "nope", "provider_said": "no such thing"}
    assert calls == 1


@pytest.mark.parametrize("code", [429, 503, 500])
async def test_retry_after_in_seconds_is_honoured(code):
    error, _ = await failure_of(status(code, Retry_After="7"))
    assert isinstance(error, RetryLater)
    assert error.after_seconds == 7


async def test_retry_after_as_a_date_is_read_by_the_providers_own_clock():
    """The provider's clock is an hour behind ours: only the distance of its two dates counts."""
    sent_at = 1_790_000_000
    headers = {"Date": formatdate(sent_at, usegmt=True), "Retry_After": formatdate(sent_at + 90, usegmt=True)}
    error, _ = await failure_of(status(429, **headers))
    assert error.after_seconds == 90


@pytest.mark.parametrize("value", ["soon", "nan", "-5", "99999999999", ""])
async def test_an_absurd_retry_after_becomes_a_sensible_hold(value):
    error, _ = await failure_of(status(429, Retry_After=value))
    assert 1 <= error.after_seconds <= 86_400


async def test_a_spent_quota_is_told_from_a_rate_limit():
    error, _ = await failure_of(status(429, {"error": {"code": "insufficient_quota", "message": "..."}}))
    assert "quota spent" in error.reason
    assert error.after_seconds > 400


async def test_an_unreachable_provider_is_a_hold_that_names_the_place(free_port):
    model = model_at(f"http://user:{KEY}@127.0.0.1:{free_port}/v1")
    with pytest.raises(RetryLater) as caught:
        await model.complete(MESSAGES)
    await model.close()
    assert f"127.0.0.1:{free_port}" in caught.value.reason
    assert KEY not in caught.value.reason


async def test_a_missing_model_name_is_a_hold_that_says_so():
    async with provider(says("x")) as server:
        model = OpenAIModel(ModelOptions(model_url=server.url))
        with pytest.raises(RetryLater, match="POSTROOM_MODEL is not"):
            await model.complete(MESSAGES)
        await model.close()
        assert server.calls == 0


@pytest.mark.parametrize(
    "behaviour",
    [sends(then="hang"), sends(STREAM_HEAD, then="hang"), sends(STREAM_HEAD, then="ping")],
    ids=["before the answer", "before the first word", "comments only"],
)
async def test_a_provider_that_never_begins_is_a_timeout(behaviour):
    error, _ = await failure_of(behaviour, model_read_timeout_seconds=0.2, model_idle_timeout_seconds=60)
    assert type(error) is ModelTimeout


@pytest.mark.parametrize("then", ["hang", "ping"])
async def test_a_stream_that_stands_still_is_a_timeout_also_when_it_sends_comments(then):
    behaviour = sends(STREAM_HEAD, word("So"), then=then)
    error, _ = await failure_of(behaviour, model_read_timeout_seconds=60, model_idle_timeout_seconds=0.2)
    assert type(error) is ModelTimeout
    assert "stood still" in str(error)


async def test_a_slow_stream_is_no_timeout():
    async def drip(request, writer):
        writer.write(STREAM_HEAD)
        for _ in range(8):
            writer.write(word("x"))
            await writer.drain()
            await asyncio.sleep(0.1)  # eight times this is over the idle limit, one is not
        writer.write(word(None, "stop"))
        await writer.drain()

    async with provider(drip) as server:
        model = model_at(server.url, model_read_timeout_seconds=60, model_idle_timeout_seconds=0.6)
        answer = await model.complete(MESSAGES)
        await model.close()
    assert answer.text == "x" * 8


@pytest.mark.parametrize(
    "behaviour",
    [
        sends(STREAM_HEAD, word("half an ans")),
        sends(STREAM_HEAD, word("half"), then="reset"),
        sends(then="reset"),
        sends(),
    ],
    ids=["closed", "reset in the middle", "reset at once", "closed at once"],
)
async def test_an_answer_that_is_cut_off_is_retried_and_never_taken_as_whole(behaviour):
    error, _ = await failure_of(behaviour)
    assert type(error) is ModelStreamBroken


@pytest.mark.parametrize(
    "behaviour",
    [
        status(200, b"<html>Welcome to the proxy</html>"),
        status(200, {"choices": []}),
        status(200, []),
        sends(STREAM_HEAD, b"data: {broken\n\n"),
        sends(STREAM_HEAD, b"data: 3\n\n"),
        sends(STREAM_HEAD, event(choices=[3])),
        sends(STREAM_HEAD, event(choices=[{"delta": "x"}])),
        sends(STREAM_HEAD, b"data: " + b"[" * 100_000 + b"\n\n"),
        status(200, {"choices": ["x"]}),
        sends(STREAM_HEAD, b"data: " + b"x" * (2 << 20)),
        sends(STREAM_HEAD, *[word("y" * 60_000)] * 80),
    ],
    ids=[
        "html",
        "no choices",
        "list",
        "broken event",
        "number",
        "choice",
        "delta",
        "depth",
        "whole",
        "endless line",
        "endless answer",
    ],
)
async def test_an_answer_that_is_none_is_retried(behaviour):
    error, _ = await failure_of(behaviour)
    assert type(error) is ModelAnswerInvalid


@pytest.mark.parametrize(
    "behaviour",
    [
        says("no", finish="content_filter"),
        sends(STREAM_HEAD, word(None, "stop", refusal="I cannot help with that")),
        status(400, {"error": {"code": "content_filter", "message": "filtered"}}),
    ],
    ids=["finish reason", "refusal", "status"],
)
async def test_refused_content_is_permanent(behaviour):
    error, _ = await failure_of(behaviour)
    assert isinstance(error, PermanentError)
    assert error.code == "content_refused"


async def test_an_error_inside_the_stream_is_judged_by_its_code():
    limited = sends(STREAM_HEAD, word("a"), event(error={"code": 429, "message": "slow down"}))
    assert isinstance((await failure_of(limited))[0], RetryLater)
    broken = sends(STREAM_HEAD, word("a"), event(error={"message": "oops"}))
    assert type((await failure_of(broken))[0]) is ModelServerError


@pytest.mark.parametrize("code", [*HOLDS, *RETRIED, *PERMANENT])
async def test_neither_key_nor_content_is_in_a_message_or_the_log(code, caplog):
    """The provider repeats both in its answer, as some do."""
    caplog.set_level(logging.DEBUG)
    said = {
        "error": {
            "message": f"Incorrect API key provided: {KEY}. You sent: {CONTENT}",
            "type": f"{KEY} {CONTENT}",
        }
    }
    error, _ = await failure_of(status(code, said))
    told = f"{error} {error!r} {getattr(error, 'reason', '')} {caplog.text}"
    assert KEY not in told
    assert CONTENT not in told
    assert KEY not in json.dumps(getattr(error, "detail", None))


async def test_a_key_that_a_stream_repeats_is_masked():
    said = event(error={"code": 400, "message": f"bad key {KEY}"})
    error, _ = await failure_of(sends(STREAM_HEAD, word("a"), said))
    assert isinstance(error, PermanentError)
    assert error.detail["provider_said"] == "bad key ***"


async def test_the_echo_of_these_tests_does_reach_the_detail():
    """The control: were nothing repeated, nothing could leak."""
    said = {"error": {"message": f"{KEY} {CONTENT}"}}
    error, _ = await failure_of(status(400, said))
    assert error.detail["provider_said"] == f"*** {CONTENT}"


@pytest.mark.parametrize("key", ["sk-schlüssel", "sk-\nEvil: 1"])
async def test_a_key_that_cannot_be_sent_is_a_hold_and_not_shown(key):
    async with provider(says("x")) as server:
        model = OpenAIModel(ModelOptions(model="m", model_url=server.url, model_key=key))
        with pytest.raises(RetryLater, match="POSTROOM_MODEL_KEY") as caught:
            await model.complete(MESSAGES)
        await model.close()
    assert key not in str(caught.value)
    assert server.calls == 0


async def test_a_key_with_a_line_end_is_the_key():
    async with provider(says("x")) as server:
        model = OpenAIModel(ModelOptions(model="m", model_url=server.url, model_key=f"{KEY}\n"))
        await model.complete(MESSAGES)
        await model.close()
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_key_is_not_in_the_repr_of_the_options():
    assert KEY not in repr(ModelOptions(model_key=KEY))
