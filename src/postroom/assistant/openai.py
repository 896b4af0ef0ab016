"""Any OpenAI-compatible endpoint, by its base URL.

Answers are streamed, so that a provider that stands still is told from one that writes slowly. Three clocks: to
connect, to the first word, and between words; a comment or a keep-alive is no word.

Endpoints differ in which optional fields they take. A field that one refuses by name is left out (or replaced) from
then on, and the refused question is asked again at once.

No text of a job and no key appears in an exception's message or in the log. What the provider said about a refused
request goes to ``PermanentError.detail``, beside the job's own content, with the key masked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from postroom.assistant.models import (
    Answer,
    Message,
    ModelAnswerInvalid,
    ModelOptions,
    ModelServerError,
    ModelStreamBroken,
    ModelTimeout,
    Role,
    Usage,
    Vector,
)
from postroom.errors import PermanentError, RetryLater

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("postroom.assistant")

KEY_REFUSED_SECONDS = 300.0
SETUP_SECONDS = 300.0
LIMITED_SECONDS = 20.0
QUOTA_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_ANSWER_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
MAX_ERROR_BYTES = 64 << 10
ENCODE_BATCH = 64
MAX_ENCODE_CHARS = 6000

_AWAY = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529})
_REFUSED_CODES = frozenset(
    {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "moderation"}
)


@dataclass
class _Dialect:
    """Which optional fields this endpoint takes; learned from its refusals."""

    left_out: set[str] = field(default_factory=set)
    schema_as: str = "json_schema"  # then "json_object", then "prompt"
    max_tokens_as: str = "max_tokens"

    def learn(self, said: str) -> bool:
        """True if a refusal names a field that can be left out or said in another way."""
        if "max_tokens" in said and self.max_tokens_as == "max_tokens":
            self.max_tokens_as = "max_completion_tokens"
        elif ("response_format" in said or "json_schema" in said) and self.schema_as != "prompt":
            self.schema_as = "json_object" if self.schema_as == "json_schema" else "prompt"
        elif (
            name := next(
                (f for f in ("stream_options", "temperature") if f in said and f not in self.left_out), None
            )
        ) is not None:
            self.left_out.add(name)
        else:
            return False
        return True

    def suffix(self) -> str:
        """Part of the request id: another body must not go out under the same ``Idempotency-Key``."""
        differences = sorted(self.left_out)
        if self.schema_as != "json_schema":
            differences.append(self.schema_as)
        if self.max_tokens_as != "max_tokens":
            differences.append(self.max_tokens_as)
        return "".join(f";{name}" for name in differences)


class OpenAIModel:
    """`Model` over HTTP. As many calls at once as the caller likes; a worker's concurrency and gates are the limit."""

    def __init__(
        self,
        options: ModelOptions,
        *,
        is_local: bool = False,
        free_text_fields: Mapping[str, Any] | None = None,
    ) -> None:
        if not options.model_url:
            raise ValueError("model_url is empty")
        self._options = options
        self._base = _base_url(options.model_url)
        self._is_local = is_local
        self._free_text_fields = free_text_fields or {}
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dialect = _Dialect()
        self._away_since: float | None = None

    @property
    def name(self) -> str:
        return self._options.model or "unnamed"

    # ------------------------------------------------------------ the port

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        request_id: str | None = None,
    ) -> Answer:
        """What the model answers; raises as `models` says."""
        started = time.monotonic()
        while True:
            body = self._body(messages, schema, max_tokens, temperature)
            async with self._post("/chat/completions", body, request_id) as response:
                if response.status_code == 200:
                    collected = await self._collect(response)
                    self._away_since = None
                    return self._answer(collected, started)
                refusal = await self._refusal(response)
            if refusal.status not in (400, 422) or not self._dialect.learn(refusal.said):
                raise self._judge(refusal)

    async def encode(self, texts: Sequence[str], *, role: Role = "query") -> list[Vector]:
        """Vectors from the endpoint's ``/embeddings``, of length 1; raises as `models` says."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), ENCODE_BATCH):
            batch = [text[:MAX_ENCODE_CHARS] for text in texts[start : start + ENCODE_BATCH]]
            async with self._post("/embeddings", {"model": self._model(), "input": batch}, None) as response:
                if response.status_code != 200:
                    raise self._judge(await self._refusal(response))
                raw = await self._read_all(response, MAX_ANSWER_BYTES)
            vectors += _vectors(raw, len(batch))
        return vectors

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    # ------------------------------------------------------------ asking

    def _model(self) -> str:
        if not self._options.model:
            raise RetryLater(
                SETUP_SECONDS,
                "POSTROOM_MODEL_URL is set and POSTROOM_MODEL is not: say which model to ask for",
            )
        return self._options.model

    def _body(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any] | None,
        max_tokens: int,
        temperature: float,
    ) -> dict[str, Any]:
        dialect = self._dialect
        body: dict[str, Any] = {
            "model": self._model(),
            "messages": [dict(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": temperature,
            dialect.max_tokens_as: max_tokens,
        }
        if schema is None:
            body |= self._free_text_fields
        else:
            if dialect.schema_as == "json_schema":
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": dict(schema)},
                }
            else:
                shown = json.dumps(schema, ensure_ascii=False)
                asked = f"Answer only with JSON that follows this JSON schema:\n{shown}"
                body["messages"].insert(0, {"role": "system", "content": asked})
                if dialect.schema_as == "json_object":
                    body["response_format"] = {"type": "json_object"}
        for name in dialect.left_out:
            body.pop(name, None)
        return body

    def _http(self) -> httpx2.AsyncClient:
        import httpx2

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            options = self._options
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(
                    options.model_read_timeout_seconds,
                    connect=options.model_connect_timeout_seconds,
                    pool=None,
                ),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=0 if self._is_local else 100
                ),
                follow_redirects=False,
                trust_env=not self._is_local,
            )
            self._loop = loop
        return self._client

    @asynccontextmanager
    async def _post(
        self, path: str, body: Mapping[str, Any], request_id: str | None
    ) -> AsyncIterator[httpx2.Response]:
        """One request; what goes wrong on the wire becomes one of ours. The body is not read yet."""
        import httpx2

        headers = {"Accept": "text/event-stream, application/json"}
        if self._options.model_key:
            headers["Authorization"] = f"Bearer {self._options.model_key}"
        if request_id is not None:
            sent_as = _header_safe(request_id + self._dialect.suffix())
            headers |= {"Idempotency-Key": sent_as, "X-Request-ID": sent_as}
        try:
            async with self._http().stream("POST", self._base + path, json=body, headers=headers) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
            raise self._away(
                f"the model's provider at {self._place()} cannot be reached ({type(error).__name__})"
            ) from None
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
            limit = self._options.model_read_timeout_seconds
            raise ModelTimeout(
                f"the model at {self._place()} did not answer within {limit:g} s ({type(error).__name__})"
            ) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise RetryLater(SETUP_SECONDS, "POSTROOM_MODEL_URL is no usable address") from None
        except httpx2.TransportError as error:
            raise ModelStreamBroken(
                f"the connection to the model at {self._place()} broke ({type(error).__name__})"
            ) from None

    def _place(self) -> str:
        """Host and port only: an address may carry a password."""
        parts = urlsplit(self._base)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    # ------------------------------------------------------------ reading

    async def _collect(self, response: httpx2.Response) -> _Collected:
        collected = _Collected()
        if "json" in response.headers.get("content-type", ""):
            collected.take_whole(_parse(await self._read_all(response, MAX_ANSWER_BYTES)))
        else:
            await self._follow(response, collected)
        if collected.error is not None:
            raise self._judge(collected.error)
        if collected.finish_reason is None:
            raise ModelStreamBroken(f"the model at {self._place()} stopped in the middle of its answer")
        return collected

    async def _follow(self, response: httpx2.Response, collected: _Collected) -> None:
        """Reads events until the end; each word that comes moves the idle limit on."""
        loop = asyncio.get_running_loop()
        limits = self._options
        limit = limits.model_read_timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                async for data in _events(response):
                    if data == "[DONE]":
                        collected.ended()
                        return
                    if collected.take_event(_parse(data)):
                        limit = limits.model_idle_timeout_seconds
                        clock.reschedule(loop.time() + limit)
                    if collected.error is not None:
                        return
        except TimeoutError:
            what = "stood still" if collected.parts else "did not begin its answer"
            raise ModelTimeout(f"the model at {self._place()} {what} for {limit:g} s") from None

    async def _read_all(self, response: httpx2.Response, max_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._options.model_read_timeout_seconds):
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > max_bytes:
                        raise ModelAnswerInvalid(f"the model's answer is longer than {max_bytes} bytes")
        except TimeoutError:
            raise ModelTimeout(f"the model at {self._place()} did not finish its answer in time") from None
        return b"".join(parts)

    def _answer(self, collected: _Collected, started: float) -> Answer:
        if collected.refusal or collected.finish_reason == "content_filter":
            raise PermanentError("the provider refused this content", code="content_refused")
        usage = Usage(
            tokens_in=collected.usage.get("prompt_tokens", 0),
            tokens_out=collected.usage.get("completion_tokens", 0),
            milliseconds=round((time.monotonic() - started) * 1000),
            model_calls=1,
        )
        return Answer(
            "".join(collected.parts), collected.model or self.name, usage, collected.finish_reason or "stop"
        )

    # ------------------------------------------------------------ judging

    async def _refusal(self, response: httpx2.Response) -> _Refusal:
        """What the provider said, as far as it can be read in a few seconds."""
        import httpx2

        said: Any = None
        raw = b""
        try:
            async with asyncio.timeout(5):
                async for part in response.aiter_bytes():
                    raw += part
                    if len(raw) > MAX_ERROR_BYTES:
                        break
            said = json.loads(raw)
        except (TimeoutError, ValueError, httpx2.TransportError):
            pass  # the status is enough
        refusal = _Refusal.of(response.status_code, said, self._options.model_key)
        refusal.after_seconds = _retry_after(response.headers)
        log.info("the model's provider answered %d (%s)", refusal.status, refusal.code or "no code")
        return refusal

    def _judge(self, refusal: _Refusal) -> Exception:
        """A status, once and for all, as an exception. The table in the docs is this function."""
        status, code = refusal.status, f", {refusal.code}" if refusal.code else ""
        if refusal.code.casefold() in _REFUSED_CODES:
            return PermanentError(
                "the provider refused this content", code="content_refused", detail=refusal.detail()
            )
        if status in (401, 403):
            return RetryLater(
                KEY_REFUSED_SECONDS,
                f"key refused: the model's provider answered {status}{code}; check POSTROOM_MODEL_KEY",
            )
        if status == 402 or refusal.is_quota:
            return RetryLater(
                refusal.after(QUOTA_SECONDS), f"quota spent: the model's provider answered {status}{code}"
            )
        if status == 429:
            return RetryLater(
                refusal.after(LIMITED_SECONDS), f"rate limited: the model's provider answered 429{code}"
            )
        if status in _AWAY or (status >= 500 and refusal.after_seconds is not None):
            return self._away(f"the model's provider answered {status}{code}", refusal.after_seconds)
        if 300 <= status < 400:
            return RetryLater(
                SETUP_SECONDS,
                f"the model's provider answered {status}, a redirect: correct POSTROOM_MODEL_URL",
            )
        if status == 408:
            return ModelTimeout(f"the model's provider gave up waiting (408{code})")
        if status == 409 or status == 425 or status >= 500 or status < 200:
            return ModelServerError(f"the model's provider answered {status}{code}")
        return PermanentError(
            f"the model's provider refused the request with {status}{code}",
            code=f"model_{status}",
            detail=refusal.detail(),
        )

    def _away(self, reason: str, after_seconds: float | None = None) -> RetryLater:
        """A hold that grows with the outage, so that a long one is not asked after every few seconds by every job."""
        now = time.monotonic()
        self._away_since = self._away_since or now
        seconds = min(300.0, max(10.0, (now - self._away_since) / 2))
        return RetryLater(
            after_seconds if after_seconds is not None else seconds * random.uniform(0.8, 1.2), reason
        )


@dataclass
class _Refusal:
    """An answer that is no answer."""

    status: int
    code: str = ""
    said: str = ""
    after_seconds: float | None = None

    @classmethod
    def of(cls, status: int, body: Any, key: str | None) -> _Refusal:
        error = body.get("error", body) if isinstance(body, dict) else None
        if not isinstance(error, dict):
            error = {"message": error} if isinstance(error, str) else {}
        code = next((str(error[f]) for f in ("code", "type") if isinstance(error.get(f), str)), "")
        said = " ".join(str(error[f]) for f in ("message", "detail", "param") if error.get(f))
        if key:
            said, code = said.replace(key, "***"), code.replace(key, "***")
        # A code is a word of the provider's; anything longer might be somebody's text.
        return cls(status, code if re.fullmatch(r"[A-Za-z0-9_.\-]{1,64}", code) else "", said)

    @property
    def is_quota(self) -> bool:
        return self.status == 429 and any(
            word in f"{self.code} {self.said}".casefold() for word in ("quota", "billing", "credit")
        )

    def after(self, default_seconds: float) -> float:
        if self.after_seconds is not None:
            return self.after_seconds
        return default_seconds * random.uniform(0.8, 1.2)

    def detail(self) -> dict[str, Any]:
        return {"status": self.status, "code": self.code or None, "provider_said": self.said[:500] or None}


@dataclass
class _Collected:
    """An answer as it comes in."""

    parts: list[str] = field(default_factory=list)
    refusal: str = ""
    finish_reason: str | None = None
    model: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    error: _Refusal | None = None

    def take_event(self, event: Any) -> bool:
        """True if the event moved the answer on."""
        if not isinstance(event, dict):
            raise ModelAnswerInvalid("the model's stream holds something that is no event")
        if event.get("error"):
            self._take_error(event)
            return False
        self._take_head(event)
        moved = False
        for choice in event.get("choices") or ():
            moved |= self._take(choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return moved

    def take_whole(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ModelAnswerInvalid("the model's answer is JSON and no completion")
        if body.get("error"):
            self._take_error(body)
            return
        self._take_head(body)
        choices = body.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ModelAnswerInvalid("the model's answer has no choices")
        self._take(choices[0].get("message") or {})
        self.finish_reason = choices[0].get("finish_reason") or "stop"

    def ended(self) -> None:
        self.finish_reason = self.finish_reason or ("stop" if self.parts else None)

    def _take(self, message: Mapping[str, Any]) -> bool:
        content, refusal = message.get("content"), message.get("refusal")
        if isinstance(content, str) and content:
            self.parts.append(content)
        if isinstance(refusal, str) and refusal:
            self.refusal += refusal
        # A model that thinks aloud is at work: its thoughts move the idle limit, and are not the answer.
        return bool(content or refusal or message.get("reasoning_content") or message.get("reasoning"))

    def _take_head(self, body: Mapping[str, Any]) -> None:
        if isinstance(body.get("model"), str):
            self.model = body["model"]
        usage = body.get("usage")
        if isinstance(usage, dict):
            self.usage = {name: value for name, value in usage.items() if isinstance(value, int)}

    def _take_error(self, body: Mapping[str, Any]) -> None:
        error = body["error"]
        status = error.get("code") if isinstance(error, dict) else None
        self.error = _Refusal.of(
            status if isinstance(status, int) and 300 <= status < 600 else 500, body, None
        )


def _parse(raw: str | bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        raise ModelAnswerInvalid("the model's answer is not JSON") from None


async def _events(response: httpx2.Response) -> AsyncIterator[str]:
    """The ``data`` of server-sent events, bounded; comments and other fields are passed over."""
    pending = b""
    total = 0
    async for part in response.aiter_bytes():
        total += len(part)
        *lines, pending = (pending + part).split(b"\n")
        if total > MAX_ANSWER_BYTES or len(pending) > MAX_LINE_BYTES:
            raise ModelAnswerInvalid(f"the model's answer is longer than {MAX_ANSWER_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")
    if pending.startswith(b"data:"):
        yield pending[5:].strip().decode(errors="replace")


def _vectors(raw: bytes, count: int) -> list[Vector]:
    try:
        entries = sorted(json.loads(raw)["data"], key=lambda entry: entry["index"])
        vectors = [[float(number) for number in entry["embedding"]] for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise ModelAnswerInvalid("the endpoint's answer holds no embeddings") from None
    if len(vectors) != count:
        raise ModelAnswerInvalid(f"{count} texts were sent and {len(vectors)} embeddings came back")
    return [_unit(vector) for vector in vectors]


def _unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    return [number / length for number in vector]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """``Retry-After``, seconds or a date, as seconds from now; a date is read by the provider's own clock."""
    raw = headers.get("retry-after", "").strip()
    if not raw:
        return None
    try:
        seconds = float(raw)
    except ValueError:
        try:
            until = parsedate_to_datetime(raw).timestamp()
            sent_at = headers.get("date")
            seconds = until - (parsedate_to_datetime(sent_at).timestamp() if sent_at else time.time())
        except ValueError:
            return None
    if not math.isfinite(seconds):
        return None
    return min(MAX_RETRY_AFTER_SECONDS, max(1.0, seconds))


def _base_url(url: str) -> str:
    """The address that paths are added to: a bare host gets ``/v1``, a full completions address loses its end."""
    base = url.rstrip("/").removesuffix("/chat/completions")
    return f"{base}/v1" if not urlsplit(base).path.strip("/") else base


def _header_safe(value: str) -> str:
    return re.sub(r"[^\x21-\x7e]", lambda m: f"%{ord(m.group()):x}", value)[:255]
