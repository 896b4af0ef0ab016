"""A report of the day's tickets: one whole handler whose stages are steps, and a provider that is down for a moment.

    python examples/nightly_report.py

Let cron call it: the idempotency key makes one report of each day, however often it is called.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from postroom import Inbox, RetryLater

inbox = Inbox()

TICKETS = [
    {"team": "billing", "text": "I was charged twice"},
    {"team": "billing", "text": "The invoice has the wrong name"},
    {"team": "login", "text": "The reset mail does not come"},
    {"team": "shipping", "text": "Where is my parcel?"},
    {"team": "shipping", "text": "The parcel came open"},
]

made: Counter[str] = Counter()  # what was really done, to show that no step is made twice


async def fetch_tickets(day: str) -> list[dict[str, str]]:
    made["fetch"] += 1
    return TICKETS


async def summarise(team: str, texts: list[str]) -> str:
    """Stands for your model. For one team it is overloaded the first time, and says when to come back."""
    made[f"summarise {team}"] += 1
    if team == "login" and made[f"summarise {team}"] == 1:
        raise RetryLater(0.2, "429 from the provider")
    return f"{team}: {len(texts)} tickets, the first: {texts[0]}"


async def send(report: str, key: str) -> str:
    """Stands for your mail server. The key is the mail's Message-ID, so that it can tell a repeat."""
    made["send"] += 1
    return f"sent as <{key}@example.org>"


@inbox.handler("nightly-report", whole=True, max_attempts=5)
async def nightly_report(run: Any) -> dict[str, Any]:
    """Runs again from its start after an error, a hold or a crash; each step gives what it gave before."""
    tickets = await run.step("fetch", fetch_tickets, run.content["day"])
    teams = sorted({ticket["team"] for ticket in tickets})
    parts = []
    for n, team in enumerate(teams):
        texts = [ticket["text"] for ticket in tickets if ticket["team"] == team]
        parts.append(await run.step("summarise", summarise, team, texts))
        run.progress(n + 1, len(teams) + 1)
    report = "\n".join(parts)
    receipt = await run.step("send", send, report, run.effect_key("mail"))
    return {"report": report, "receipt": receipt}


async def main(day: str = "2026-11-30") -> None:
    async with inbox, inbox.worker():
        job = await inbox.submit(
            "nightly-report", {"day": day}, sender="cron", idempotency_key=f"report-{day}"
        )
        async for line in inbox.follow(job.job_id):
            print(f"{line.n:2} {line.event}{': ' + line.reason if line.reason else ''}")
        job = await inbox.get(job.job_id)
    print(job.result["report"])
    print(job.result["receipt"])
    print(f"attempts {job.attempts}, holds {job.holds}")
    print("made:", ", ".join(f"{name} {times}" for name, times in sorted(made.items())))


if __name__ == "__main__":
    asyncio.run(main())
