"""Twenty mails, answered by a slow model: items, checkpoints, a retry, a mail that cannot be answered.

    python examples/batch_of_mails.py

Kill it in the middle (Ctrl-\\ or kill -9) and start it again: the job goes on where it was, and no mail that is done is
answered a second time. The idempotency key makes the second start find the first one's job.
"""

from __future__ import annotations

import asyncio
from typing import Any

from postroom import Inbox, PermanentError

inbox = Inbox()  # POSTROOM_STORE, or postroom.db in this folder

MAILS = [{"id": f"mail-{n:02}", "text": f"Where is order {4700 + n}?"} for n in range(20)]
MAILS[13]["text"] = ""

asked: list[str] = []


async def ask_model(text: str) -> str:
    """Stands for your model: slow, and not always there."""
    asked.append(text)
    await asyncio.sleep(0.1)
    if "4707" in text and asked.count(text) == 1:
        raise TimeoutError("the model did not answer")
    return f"Thank you for asking. We look into it: {text}"


@inbox.handler("answer-mail", item_concurrency=2)
async def answer_mail(mail: dict[str, str], run: Any) -> dict[str, str]:
    """Called once per mail. What it returns is on the disk before the next mail starts."""
    if not mail["text"]:
        raise PermanentError("the mail is empty", code="empty_mail")
    print(f"answering {mail['id']}", flush=True)
    answer = await ask_model(mail["text"])
    run.usage(words=len(answer.split()))
    return {"answer": answer, "send_under": run.effect_key("mail")}


async def main() -> None:
    async with inbox, inbox.worker():
        job = await inbox.submit(
            "answer-mail",
            items=MAILS,
            item_keys=[mail["id"] for mail in MAILS],
            allow_failed_items=1,
            sender="example",
            idempotency_key="batch-of-mails-1",
        )
        print(f"job {job.job_id}", flush=True)
        async for line in inbox.follow(job.job_id):
            if line.event == "progress":
                print(f"  {line.data['done']} of {line.data['total']}", flush=True)
            elif line.event in ("retried", "crashed"):
                print(f"  {line.event}: {line.reason}", flush=True)
        job = await inbox.get(job.job_id)
        print(f"{job.state}: {job.done} of {job.total} done, {job.failed_items} failed, {job.usage}")
        print(f"attempts {job.attempts}, crashes {job.crashes}")
        async for item in inbox.items(job.job_id):
            if item.state == "failed" and item.error:
                print(f"{item.key}: {item.error['code']}: {item.error['message']}")


if __name__ == "__main__":
    asyncio.run(main())
