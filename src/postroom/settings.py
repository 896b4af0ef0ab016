"""One frozen `Settings`, read once: flags, then ``POSTROOM_…``, then ``postroom.toml``, then the default.

Every field is a setting: ``lease_seconds`` is ``POSTROOM_LEASE_SECONDS`` in the environment and ``lease_seconds`` in
``postroom.toml``. The ``help`` of each field is what the docs and ``postroom doctor`` print.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from postroom.errors import SettingsInvalid

PREFIX = "POSTROOM_"
MASK = "••••••"
_LOGIN = re.compile(r"(?<=://)(?:[^/:@\s]*:\S*|[^/\s]+)@")
"""Who logs in, and with what, inside an address: up to the last @, since passwords are not always escaped."""
MIB = 1024 * 1024


def _setting(
    default: Any,
    help: str,
    *,
    secret: bool = False,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    return field(
        default=default,
        metadata={"help": help, "secret": secret, "low": low, "high": high, "choices": choices},
    )


@dataclass(frozen=True)
class Settings:
    """All knobs, with their units in their names."""

    store: str = _setting(
        "sqlite:///postroom.db",
        "Where jobs are kept: memory://, sqlite:///path, or http(s)://host:port of a running service.",
    )
    host: str = _setting(
        "127.0.0.1", "Address that serve listens on; loopback only while there are no access keys."
    )
    port: int = _setting(8000, "Port that serve listens on.", low=0, high=65535)
    key: str | None = _setting(None, "Access key sent to a service at the other end.", secret=True)
    lease_seconds: float = _setting(
        60.0, "How long a worker holds a job without a heartbeat.", low=1, high=3600
    )
    heartbeat_seconds: float | None = _setting(
        None, "How often a worker beats; a sixth of the lease unless set.", low=0.05, high=1800
    )
    poll_seconds: float = _setting(
        1.0, "How often an idle worker or watcher looks by itself; hints make it sooner.", low=0.01, high=60
    )
    rescue_seconds: float = _setting(
        1.0, "How often lost workers, expired jobs and time limits are looked for.", low=0.05, high=600
    )
    backoff_base_seconds: float = _setting(
        2.0,
        "Delay before the second attempt; each further one doubles it, with a fifth of jitter.",
        low=0,
        high=3600,
    )
    backoff_cap_seconds: float = _setting(3600.0, "No delay is longer than this, before jitter.", low=0)
    max_attempts: int = _setting(
        3, "Attempts of a job where neither it nor its handler says.", low=1, high=1000
    )
    max_crashes: int = _setting(
        3,
        "Lost workers in a row, without a new checkpoint in between, before a job is a dead letter.",
        low=1,
        high=1000,
    )
    max_crashes_total: int = _setting(
        20, "Lost workers in one life of a job before it is a dead letter.", low=1, high=10000
    )
    drain_seconds: float = _setting(
        30.0, "How long a worker that is told to stop lets its runs go on before it hands them back.", low=0
    )
    overtake_seconds: float = _setting(
        600.0, "How long a waiting job can be overtaken by those one priority above it.", low=0
    )
    concurrency: int = _setting(16, "Jobs that one worker process runs at once.", low=1, high=100_000)
    stall_timeout_seconds: float = _setting(
        1800.0,
        "A run without new progress for this long is ended, where neither job nor handler says.",
        low=0.1,
    )
    fair_by: str = _setting(
        "owner", "Who shares a queue fairly: owner, sender, or none.", choices=("owner", "sender", "none")
    )
    max_body_bytes: int = _setting(10 * MIB, "Largest request body.", low=1024)
    max_item_bytes: int = _setting(MIB, "Largest item or content.", low=16)
    max_result_bytes: int = _setting(16 * MIB, "Largest result of one item or of a content job.", low=16)
    retain_succeeded_days: float = _setting(90.0, "Days that succeeded jobs are kept after their end.", low=0)
    retain_failed_days: float = _setting(
        365.0,
        "Days that failed and cancelled jobs, which can be replayed, are kept after their end.",
        low=0,
    )
    app: str | None = _setting(None, "Your handlers: module:inbox, as with --app.")
    model: str | None = _setting(None, "Name of the model to ask for; with model_url.")
    model_url: str | None = _setting(
        None, "Base URL of an OpenAI-compatible endpoint; the embedded models are used without one."
    )
    model_key: str | None = _setting(None, "Key of that endpoint.", secret=True)
    model_connect_timeout_seconds: float = _setting(
        5.0, "How long connecting to the model may take.", low=0.1
    )
    model_read_timeout_seconds: float = _setting(120.0, "How long one call of the model may take.", low=0.1)
    model_idle_timeout_seconds: float = _setting(30.0, "How long a streaming model may be silent.", low=0.1)
    model_dir: str | None = _setting(
        None, "Where fetched models are kept; ~/.cache/postroom/models unless set."
    )
    sources: Mapping[str, str] = field(default_factory=dict, metadata={"internal": True})
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})

    def __post_init__(self) -> None:
        """Whatever made it: a value out of bounds would otherwise fail, or hang, somewhere far from here.

        Raises:
            SettingsInvalid: names the setting, the value (not of secrets) and what it must be.
        """
        for f in SETTING_FIELDS:
            _check(f.name, getattr(self, f.name), self.sources.get(f.name))
        if self.beat_seconds > self.lease_seconds / 2:
            raise SettingsInvalid(
                f"heartbeat_seconds ({self.beat_seconds:g}) must be at most half of "
                f"lease_seconds ({self.lease_seconds:g})"
            )

    @property
    def beat_seconds(self) -> float:
        """The heartbeat interval in force."""
        return self.heartbeat_seconds if self.heartbeat_seconds is not None else self.lease_seconds / 6


SETTING_FIELDS = tuple(f for f in fields(Settings) if not f.metadata.get("internal"))
_BY_NAME = {f.name: f for f in SETTING_FIELDS}


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    toml: Path | None = None,
) -> Settings:
    """Read the settings once, each from the first place that has it.

    Args:
        overrides: flags by setting name; None values are left out.
        environ: the environment; ``os.environ`` unless given.
        toml: the file; ``postroom.toml`` in the working directory unless given. It need not exist.
    Raises:
        SettingsInvalid: a value cannot be used; names the setting, the value (not of secrets) and where it came from.
    """
    environ = os.environ if environ is None else environ
    path = Path("postroom.toml") if toml is None else toml
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    for source, found in (
        (str(path), _from_toml(path)),
        ("environment", {k[len(PREFIX) :].lower(): v for k, v in environ.items() if k.startswith(PREFIX)}),
        ("flag", {k: v for k, v in (overrides or {}).items() if v is not None}),
    ):
        for name, raw in found.items():
            if name not in _BY_NAME:
                warnings.append(_unknown(name, source))
                continue
            values[name] = _convert(name, raw, source)
            sources[name] = source
    return Settings(**values, sources=sources, warnings=tuple(warnings))


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """(name, value, source) of every setting, secrets masked: what ``postroom doctor`` prints."""
    rows = []
    for f in SETTING_FIELDS:
        value = getattr(settings, f.name)
        shown = "" if value is None else str(value)
        if f.metadata["secret"] and value:
            shown = MASK
        rows.append((f.name, masked(shown), settings.sources.get(f.name, "default")))
    return rows


def masked(text: str) -> str:
    """The text without what logs in at an address in it: for whatever is shown, logged or told in an error."""
    return _LOGIN.sub(f"{MASK}@", text)


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"{path} cannot be read: {error}") from None


def _unknown(name: str, source: str) -> str:
    shown = PREFIX + name.upper() if source == "environment" else name
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = near[0] if near else None
    if hint is not None and source == "environment":
        hint = PREFIX + hint.upper()
    return f"unknown setting {shown} ({source})" + (f"; did you mean {hint}?" if hint else "")


def _convert(name: str, raw: Any, source: str) -> Any:
    f = _BY_NAME[name]
    kind = str(f.type)
    try:
        value: Any = raw
        if "int" in kind:
            value = _integer(raw)
        elif "float" in kind:
            value = _number(raw)
        elif not isinstance(raw, str):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, raw, source) from None
    _check(name, value, source)
    return value


def _wrong(name: str, raw: Any, source: str | None) -> SettingsInvalid:
    kind = str(_BY_NAME[name].type)
    wanted = "a whole number" if "int" in kind else "a number" if "float" in kind else "text"
    return SettingsInvalid(f"{_from(name, source)} must be {wanted}, found {_show(name, raw)}")


def _from(name: str, source: str | None) -> str:
    return name if source is None else f"{name} ({source})"


def _check(name: str, value: Any, source: str | None) -> None:
    """Refuse what is not of the setting's type, or not within its bounds."""
    f = _BY_NAME[name]
    kind, said = str(f.type), _from(name, source)
    if value is None and "None" in kind:
        return
    types: Any = int if "int" in kind else int | float if "float" in kind else str
    if not isinstance(value, types) or isinstance(value, bool) or value != value:
        raise _wrong(name, value, source)
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if low is not None and value < low:
        raise SettingsInvalid(f"{said} must be at least {low:g}, found {value}")
    if high is not None and value > high:
        raise SettingsInvalid(f"{said} must be at most {high:g}, found {value}")
    if choices and value not in choices:
        raise SettingsInvalid(f"{said} must be one of {', '.join(choices)}, found {_show(name, value)}")


def _integer(raw: Any) -> int:
    if isinstance(raw, bool) or (isinstance(raw, float) and raw != int(raw)):
        raise ValueError
    return int(raw)


def _number(raw: Any) -> float:
    value = float(raw)
    if isinstance(raw, bool) or value != value:
        raise ValueError
    return value


def _show(name: str, raw: Any) -> str:
    return "a secret value" if _BY_NAME[name].metadata["secret"] else masked(repr(raw))[:80]
