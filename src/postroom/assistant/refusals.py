"""A provider's refusals: what each status means for a job. The table in the docs is `judge`."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from postroom.assistant.models import ModelServerError, ModelTimeout
from postroom.errors import PermanentError, RetryLater

KEY_REFUSED_SECONDS = 300.0
SETUP_SECONDS = 300.0
LIMITED_SECONDS = 20.0
QUOTA_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 86_400.0

_AWAY = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529})
_REFUSED_CODES = frozenset(
    {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "moderation"}
)


@dataclass
class Refusal:
    """An answer that is no answer.

    Attributes:
        status: of HTTP, or what an error inside a stream says.
        code: the provider's word for it; empty if it has none, or says anything that might be somebody's text.
        said: the provider's sentence, with our key masked; it may repeat what we sent.
        after_seconds: ``Retry-After``.
    """

    status: int
    code: str = ""
    said: str = ""
    after_seconds: float | None = None

    @classmethod
    def of(cls, status: int, body: Any, key: str | None, after_seconds: float | None = None) -> Refusal:
        """From a status and the parsed body, in any of the usual shapes."""
        error = body.get("error", body) if isinstance(body, dict) else None
        if not isinstance(error, dict):
            error = {"message": error} if isinstance(error, str) else {}
        code = next((str(error[f]) for f in ("code", "type") if isinstance(error.get(f), str)), "")
        said = " ".join(str(error[f]) for f in ("message", "detail", "param") if error.get(f))
        if key:
            said, code = said.replace(key, "***"), code.replace(key, "***")
        is_word = re.fullmatch(r"[A-Za-z0-9_.\-]{1,64}", code) is not None
        return cls(status, code if is_word else "", said, after_seconds)

    @classmethod
    def in_stream(cls, body: Mapping[str, Any], key: str | None) -> Refusal:
        """From an ``error`` that came instead of an answer's next word."""
        error = body["error"]
        status = error.get("code") if isinstance(error, dict) else None
        return cls.of(status if isinstance(status, int) and 300 <= status < 600 else 500, body, key)

    @property
    def is_quota(self) -> bool:
        """True for a 429 that no waiting of seconds mends."""
        words = f"{self.code} {self.said}".casefold()
        return self.status == 429 and any(word in words for word in ("quota", "billing", "credit"))

    def detail(self) -> dict[str, Any]:
        """For the person who reads the dead letter."""
        return {"status": self.status, "code": self.code or None, "provider_said": self.said[:500] or None}


class Outage:
    """How long a provider has been away: holds grow with it, so that not every job asks every few seconds."""

    def __init__(self) -> None:
        self._since: float | None = None

    def over(self) -> None:
        """The provider answered."""
        self._since = None

    def hold(self, reason: str, after_seconds: float | None = None) -> RetryLater:
        """The hold for one more call that found nobody."""
        now = time.monotonic()
        self._since = self._since or now
        seconds = min(300.0, max(10.0, (now - self._since) / 2))
        return _hold(after_seconds, seconds, reason)


def judge(refusal: Refusal, outage: Outage) -> Exception:
    """What becomes of the job: a hold, an error that is retried, or a permanent one."""
    status = refusal.status
    answered = f"the model's provider answered {status}" + (f", {refusal.code}" if refusal.code else "")
    if refusal.code.casefold() in _REFUSED_CODES:
        return PermanentError("the provider refused this content", "content_refused", refusal.detail())
    if status in (401, 403):
        return RetryLater(KEY_REFUSED_SECONDS, f"key refused: {answered}; check POSTROOM_MODEL_KEY")
    if status == 402 or refusal.is_quota:
        return _hold(refusal.after_seconds, QUOTA_SECONDS, f"quota spent: {answered}")
    if status == 429:
        return _hold(refusal.after_seconds, LIMITED_SECONDS, f"rate limited: {answered}")
    if status in _AWAY or (status >= 500 and refusal.after_seconds is not None):
        return outage.hold(answered, refusal.after_seconds)
    if 300 <= status < 400:
        return RetryLater(SETUP_SECONDS, f"{answered}, a redirect: correct POSTROOM_MODEL_URL")
    if status == 408:
        return ModelTimeout(f"{answered}: it gave up waiting")
    if status in (409, 425) or status >= 500 or status < 200:
        return ModelServerError(answered)
    return PermanentError(f"{answered} and will again", f"model_{status}", refusal.detail())


def _hold(after_seconds: float | None, default_seconds: float, reason: str) -> RetryLater:
    """What the provider asked for, else our own time, spread so that a thousand jobs do not come back at once."""
    seconds = after_seconds if after_seconds is not None else default_seconds * random.uniform(0.8, 1.2)
    return RetryLater(seconds, reason)


def retry_after(headers: Mapping[str, str]) -> float | None:
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
