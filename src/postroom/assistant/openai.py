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
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from postroom.assistant.models import (
    Answer,
    Message,
    ModelAnswerInvalid,
    ModelOptions,
    ModelStreamBroken,
    ModelTimeout,
    Role,
    Usage,
    Vector,
)
from postroom.assistant.refusals import SETUP_SECONDS, Outage, Refusal, judge, retry_after
from postroom.assistant.streams import MAX_ANSWER_BYTES, Collected, events, vectors_in
from postroom.errors import PermanentError, RetryLater

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("postroom.assistant")

MAX_ERROR_BYTES = 64 << 10
ENCODE_BATCH = 64
MAX_ENCODE_CHARS = 6000


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
        self._outage = Outage()

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
                    self._outage.over()
                    return self._answer(collected, started)
                refusal = await self._refusal(response)
            if refusal.status not in (400, 422) or not self._dialect.learn(refusal.said):
                raise judge(refusal, self._outage)

    async def encode(self, texts: Sequence[str], *, role: Role = "query") -> list[Vector]:
        """Vectors from the endpoint's ``/embeddings``, of length 1; raises as `models` says."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), ENCODE_BATCH):
            batch = [text[:MAX_ENCODE_CHARS] for text in texts[start : start + ENCODE_BATCH]]
            async with self._post("/embeddings", {"model": self._model(), "input": batch}, None) as response:
                if response.status_code != 200:
                    raise judge(await self._refusal(response), self._outage)
                raw = await self._read_all(response, MAX_ANSWER_BYTES)
            vectors += vectors_in(raw, len(batch))
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

    def _key(self) -> str | None:
        key = (self._options.model_key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise RetryLater(
                SETUP_SECONDS, "key refused: POSTROOM_MODEL_KEY holds characters that no key has"
            )
        return key or None

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
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        if request_id is not None:
            sent_as = _header_safe(request_id + self._dialect.suffix())
            headers |= {"Idempotency-Key": sent_as, "X-Request-ID": sent_as}
        try:
            async with self._http().stream("POST", self._base + path, json=body, headers=headers) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
            raise self._outage.hold(
                f"the model's provider at {self._place()} cannot be reached ({type(error).__name__})"
            ) from None
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
            limit = self._options.model_read_timeout_seconds
            raise ModelTimeout(
                f"the model at {self._place()} did not answer within {limit:g} s ({type(error).__name__})"
            ) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise RetryLater(SETUP_SECONDS, "POSTROOM_MODEL_URL is no usable address") from None
        except httpx2.RequestError as error:
            raise ModelStreamBroken(
                f"the connection to the model at {self._place()} broke ({type(error).__name__})"
            ) from None

    def _place(self) -> str:
        """Host and port only: an address may carry a password."""
        parts = urlsplit(self._base)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    # ------------------------------------------------------------ reading

    async def _collect(self, response: httpx2.Response) -> Collected:
        collected = Collected(self._key())
        if "json" in response.headers.get("content-type", ""):
            collected.take_whole(await self._read_all(response, MAX_ANSWER_BYTES))
        else:
            await self._follow(response, collected)
        if collected.error is not None:
            raise judge(collected.error, self._outage)
        if collected.finish_reason is None:
            raise ModelStreamBroken(f"the model at {self._place()} stopped in the middle of its answer")
        return collected

    async def _follow(self, response: httpx2.Response, collected: Collected) -> None:
        """Reads events until the end; each word that comes moves the idle limit on."""
        loop = asyncio.get_running_loop()
        limits = self._options
        limit = limits.model_read_timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                async for data in events(response.aiter_bytes()):
                    if data == "[DONE]":
                        collected.ended()
                        return
                    if collected.take_event(data):
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

    def _answer(self, collected: Collected, started: float) -> Answer:
        if collected.refusal or collected.finish_reason == "content_filter":
            raise PermanentError("the provider refused this content", code="content_refused")
        usage = Usage(
            tokens_in=collected.usage.get("prompt_tokens", 0),
            tokens_out=collected.usage.get("completion_tokens", 0),
            milliseconds=round((time.monotonic() - started) * 1000),
            model_calls=1,
        )
        return Answer(
            collected.text(), collected.model or self.name, usage, collected.finish_reason or "stop"
        )

    # ------------------------------------------------------------ judging

    async def _refusal(self, response: httpx2.Response) -> Refusal:
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
        except (TimeoutError, ValueError, RecursionError, httpx2.RequestError):
            pass  # the status is enough
        refusal = Refusal.of(response.status_code, said, self._key(), retry_after(response.headers))
        log.info("the model's provider answered %d (%s)", refusal.status, refusal.code or "no code")
        return refusal


def _base_url(url: str) -> str:
    """The address that paths are added to: a bare host gets ``/v1``, a full completions address loses its end."""
    base = url.rstrip("/").removesuffix("/chat/completions")
    return f"{base}/v1" if not urlsplit(base).path.strip("/") else base


def _header_safe(value: str) -> str:
    return re.sub(r"[^\x21-\x7e]", lambda m: f"%{ord(m.group()):x}", value)[:255]
