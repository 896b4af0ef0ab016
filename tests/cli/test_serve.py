"""`postroom serve` as a process."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Start, Started


def serving(start: Start, *words: str, **environment: str) -> tuple[Started, str]:
    """A service on a free port, and its URL."""
    service = start("serve", "--port", "0", *words, POSTROOM_POLL_SECONDS="0.05", **environment)
    url = re.search(r"http://\S+", service.until("listens on"))
    assert url is not None
    service.until("try it")
    return service, url[0]


def call(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def test_it_says_where_it_listens_what_it_keeps_and_how_to_try_it(start: Start, folder: Path) -> None:
    service, url = serving(start, "--app", "handlers:inbox")
    shown = service.text
    assert f"sqlite:///{folder}/postroom.db" in shown
    assert "survives a crash and a power cut" in shown
    assert re.search(r"16 jobs at once: assistant, break, classify, die, echo", shown)
    assert "no keys exist yet, so only this machine is answered" in shown
    assert f"curl -s {url}/inbox/tasks" in shown
    assert call(f"{url}/health")[1]["status"] == "ok"
    service.tell()
    assert service.end() == 0
    assert "Traceback" not in service.text


def test_a_job_posted_over_http_is_run_and_seen_on_the_command_line(cli: Cli, start: Start) -> None:
    _, url = serving(start, "--app", "handlers:inbox")
    status, answer = call(f"{url}/jobs", {"kind": "echo", "items": ["a", "b"]})
    assert status == 202
    waited = cli("wait", answer["job_id"], "--timeout", "20", "--store", url, "--json")
    assert waited.code == 0
    assert json.loads(waited.out)["result"] == {"results": ["a", "b"]}
    followed = cli("follow", answer["job_id"], "--store", url)
    assert followed.code == 0
    assert followed.out.splitlines()[-1].endswith("succeeded")
    assert cli("result", answer["job_id"]).out == cli("result", answer["job_id"], "--store", url).out
    assert cli("submit", "echo", "--content", "over HTTP", "--wait", "--store", url).out == "over HTTP\n"
    assert cli("get", "0" * 32, "--store", url).code == 4
    assert json.loads(cli("stats", "--json", "--store", url).out) == json.loads(cli("stats", "--json").out)


def test_a_worker_over_http_runs_what_a_service_without_one_keeps(cli: Cli, start: Start) -> None:
    service, url = serving(start, "--no-worker")
    assert "none here" in service.text
    worker = start("worker", "--app", "handlers:inbox", "--store", url)
    worker.until("is ready")
    assert cli("submit", "echo", "--content", "hello", "--wait", "--timeout", "20").out == "hello\n"
    worker.tell()
    assert worker.end() == 0
    service.tell()
    assert service.end() == 0


def test_a_service_without_a_worker_still_does_the_chores(cli: Cli, start: Start) -> None:
    serving(start, "--no-worker", POSTROOM_RESCUE_SECONDS="0.05")
    job_id = cli("submit", "echo", "--content", "a", "--expires-at", "1s").out.strip()
    ran = cli("wait", job_id, "--timeout", "20", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["reason"] == "expired"


def test_the_first_signal_drains_while_questions_are_answered(cli: Cli, start: Start) -> None:
    service, url = serving(start, "--app", "handlers:inbox")
    job_id = call(f"{url}/jobs", {"kind": "nap", "content": 1})[1]["job_id"]
    _until_claimed(cli, job_id)
    service.tell()
    service.until("draining")
    assert call(f"{url}/jobs/{job_id}")[1]["state"] == "running"
    assert service.end() == 0
    assert json.loads(cli("get", job_id, "--json").out)["state"] == "succeeded"


def test_the_second_signal_hands_back_and_ends_with_1(cli: Cli, start: Start) -> None:
    service, url = serving(start, "--app", "handlers:inbox")
    job_id = call(f"{url}/jobs", {"kind": "nap", "content": 60})[1]["job_id"]
    _until_claimed(cli, job_id)
    service.tell(signal.SIGINT)
    service.until("draining")
    service.tell(signal.SIGINT)
    assert service.end() == 1
    job = json.loads(cli("get", job_id, "--json").out)
    assert [job["state"], job["attempts"], job["interruptions"]] == ["queued", 0, 1]


def test_an_open_event_stream_does_not_hold_up_the_end(start: Start) -> None:
    service, url = serving(start, "--no-worker")
    job_id = call(f"{url}/jobs", {"kind": "nap", "content": 60})[1]["job_id"]
    stream = urllib.request.urlopen(f"{url}/jobs/{job_id}/events", timeout=30)
    assert stream.readline()
    reader = threading.Thread(target=stream.read)
    reader.start()
    service.tell()
    assert service.end() == 0
    reader.join()
    stream.close()


def _until_claimed(cli: Cli, job_id: str) -> None:
    from postroom import Client

    with Client("sqlite:///postroom.db") as client:
        for line in client.follow(job_id):
            if line.event == "claimed":
                return


# ---- what cannot be served


def test_a_port_that_is_taken_is_said_in_a_sentence(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("serve", "--port", str(port), "--no-worker")
    assert ran.code == 2
    assert f"port {port} on 127.0.0.1 is taken" in ran.err


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "example.org"])
def test_an_address_that_others_can_reach_is_refused_while_there_are_no_keys(
    cli: Cli, folder: Path, host: str
) -> None:
    ran = cli("serve", "--host", host, "--no-worker")
    assert ran.code == 2
    assert "there are no access keys yet" in ran.err
    assert not list(folder.glob("postroom.db*"))


def test_a_service_over_another_service_is_refused(cli: Cli) -> None:
    ran = cli("serve", "--store", "http://127.0.0.1:9")
    assert ran.code == 2
    assert "is a service itself" in ran.err


def test_a_file_that_is_no_store_of_ours_is_refused(cli: Cli, folder: Path) -> None:
    connection = sqlite3.connect(folder / "other.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    ran = cli("serve", "--port", "0", "--no-worker", "--store", "sqlite:///other.db")
    assert ran.code == 3
    assert "other.db" in ran.err


def test_an_unknown_setting_is_a_warning_with_the_nearest_name(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_LEASE_SECOND", "5")
    ran = cli("serve", "--store", "http://127.0.0.1:9")
    assert "did you mean POSTROOM_LEASE_SECONDS?" in ran.err
