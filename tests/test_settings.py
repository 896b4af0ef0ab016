"""Where settings come from, what they may be, and what is never shown of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import PostroomError, SettingsInvalid, StoreUnavailable
from postroom.settings import MASK, SETTING_FIELDS, Settings, describe, load_settings, masked
from postroom.stores.opening import open_store
from postroom.stores.remote import RemoteDesk

NOWHERE = Path("/nonexistent/postroom.toml")


def load(flags: dict[str, Any] | None = None, /, toml: Path = NOWHERE, **environ: str) -> Settings:
    return load_settings(flags, environ={f"POSTROOM_{k}": v for k, v in environ.items()}, toml=toml)


def shown(settings: Settings) -> dict[str, tuple[str, str]]:
    return {name: (value, source) for name, value, source in describe(settings)}


# ---- sources


def test_the_first_place_that_has_a_setting_wins(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text("port = 1\nconcurrency = 2\nlease_seconds = 30\n")
    settings = load({"port": 3}, toml, PORT="4", CONCURRENCY="5")
    assert (settings.port, settings.concurrency, settings.lease_seconds) == (3, 5, 30.0)
    told = shown(settings)
    assert told["port"] == ("3", "flag")
    assert told["concurrency"] == ("5", "environment")
    assert told["lease_seconds"] == ("30.0", str(toml))
    assert told["host"] == ("127.0.0.1", "default")


def test_a_flag_that_was_not_given_hides_nothing() -> None:
    assert load({"port": None}, PORT="4").port == 4


def test_a_flag_of_zero_is_given() -> None:
    assert load({"port": 0}, PORT="4").port == 0


def test_without_any_source_all_is_as_documented() -> None:
    assert load() == Settings()
    assert set(shown(load())) == {f.name for f in SETTING_FIELDS}


def test_the_environment_and_the_folder_are_read_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "postroom.toml").write_text('host = "0.0.0.0"')
    monkeypatch.setitem(os.environ, "POSTROOM_PORT", "81")
    settings = load_settings()
    assert (settings.host, settings.port) == ("0.0.0.0", 81)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text("port = = 1")
    with pytest.raises(SettingsInvalid, match=r"postroom\.toml cannot be read"):
        load(toml=toml)


def test_a_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(toml=tmp_path)


def test_the_same_value_is_refused_with_its_source(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text('port = "many"')
    with pytest.raises(SettingsInvalid, match=rf"port \({toml}\) must be a whole number, found 'many'"):
        load(toml=toml)
    with pytest.raises(SettingsInvalid, match=r"port \(environment\)"):
        load(PORT="many")
    with pytest.raises(SettingsInvalid, match=r"port \(flag\)"):
        load({"port": "many"})


# ---- conversions and ranges


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("port", "8080", 8080),
        ("port", 8080.0, 8080),
        ("concurrency", " 7 ", 7),
        ("lease_seconds", "2.5", 2.5),
        ("lease_seconds", 30, 30.0),
        ("heartbeat_seconds", "1", 1.0),
        ("fair_by", "sender", "sender"),
        ("model", "m", "m"),
    ],
)
def test_a_value_is_converted(name: str, raw: Any, value: Any) -> None:
    got = getattr(load({name: raw}), name)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("port", "1.5"),
        ("port", 1.5),
        ("port", ""),
        ("port", True),
        ("port", [1]),
        ("port", float("inf")),
        ("port", float("nan")),
        ("port", "9" * 5000),
        ("max_attempts", None.__class__),
        ("lease_seconds", "a minute"),
        ("lease_seconds", "nan"),
        ("lease_seconds", True),
        ("lease_seconds", False),
        ("drain_seconds", True),
        ("lease_seconds", {"value": 1}),
        ("heartbeat_seconds", 10**400),
        ("host", 1),
        ("model", ["m"]),
        ("fair_by", "luck"),
    ],
)
def test_what_cannot_be_converted_is_refused(name: str, raw: Any) -> None:
    with pytest.raises(SettingsInvalid, match=rf"^{name} \(flag\) must be"):
        load({name: raw})


BOUNDED = [
    (f.name, bound, f.metadata[bound])
    for f in SETTING_FIELDS
    for bound in ("low", "high")
    if f.metadata[bound] is not None
]


@pytest.mark.parametrize(("name", "bound", "limit"), BOUNDED)
def test_a_value_exactly_at_its_limit_is_taken_and_one_past_it_refused(
    name: str, bound: str, limit: float
) -> None:
    step = 1 if "int" in str(type(getattr(Settings(), name))) else 2**-10
    beside = {"heartbeat_seconds": 0.05} if name == "lease_seconds" else {}
    beside |= {"lease_seconds": 3600} if name == "heartbeat_seconds" else {}
    assert getattr(load({**beside, name: limit}), name) == limit
    past = limit - step if bound == "low" else limit + step
    words = "at least" if bound == "low" else "at most"
    with pytest.raises(SettingsInvalid, match=rf"{name} \(flag\) must be {words}"):
        load({**beside, name: past})


def test_a_heartbeat_may_be_half_a_lease_and_no_more() -> None:
    assert load({"lease_seconds": 10, "heartbeat_seconds": 5}).beat_seconds == 5
    with pytest.raises(SettingsInvalid, match="at most half"):
        load({"lease_seconds": 10, "heartbeat_seconds": 5.01})


def test_a_heartbeat_that_is_not_set_is_a_sixth_of_the_lease() -> None:
    assert load({"lease_seconds": 12}).beat_seconds == 2.0


# ---- unknown names


def test_an_unknown_name_is_a_warning_with_the_nearest() -> None:
    settings = load(LEASE_SECOND="5")
    assert settings.warnings == (
        "unknown setting POSTROOM_LEASE_SECOND (environment); did you mean POSTROOM_LEASE_SECONDS?",
    )
    assert settings.lease_seconds == 60.0


def test_an_unknown_name_in_the_file_is_spelled_as_files_spell_it(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_text("concurency = 5")
    [warning] = load(toml=toml).warnings
    assert warning == f"unknown setting concurency ({toml}); did you mean concurrency?"


def test_a_name_that_is_near_nothing_has_no_hint() -> None:
    assert load(XYZZY="5").warnings == ("unknown setting POSTROOM_XYZZY (environment)",)


@pytest.mark.parametrize("name", ["SOURCES", "WARNINGS", "BEAT_SECONDS"])
def test_what_is_no_setting_cannot_be_set(name: str) -> None:
    settings = load(**{name: "x"})
    assert len(settings.warnings) == 1


def test_other_names_of_the_environment_are_nobodys_business() -> None:
    settings = load_settings(environ={"PORT": "1", "POSTGRES_PORT": "2"}, toml=NOWHERE)
    assert settings == Settings()


# ---- secrets


@pytest.mark.parametrize("name", [f.name for f in SETTING_FIELDS if f.metadata["secret"]])
def test_a_secret_is_masked_wherever_it_is_shown(name: str) -> None:
    told = shown(load({name: "hunter2"}))
    assert told[name] == (MASK, "flag")
    with pytest.raises(SettingsInvalid) as refused:
        load({name: 4711})
    assert "4711" not in str(refused.value)
    assert "a secret value" in str(refused.value)


def test_a_secret_that_is_not_set_is_shown_as_not_set() -> None:
    assert shown(load())["key"] == ("", "default")


SECRET = "hunter2"
ADDRESSES = [
    f"http://ann:{SECRET}@example.org:8000/v1",
    f"postgresql://{SECRET}@example.org/db",
    f"postgresql://ann:{SECRET}@more@example.org/db",
    f"redis://:{SECRET}@example.org",
    f"redis://ann:a/{SECRET}@example.org/0",
    f"http://ann:a@b/{SECRET}@example.org",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_who_logs_in_is_masked_in_an_address(address: str) -> None:
    told = shown(load({"store": address, "model_url": address}))
    for value, _ in (told["store"], told["model_url"]):
        assert SECRET not in value
        assert value == masked(address)
        assert value.split(f"{MASK}@")[1] == address.rpartition("@")[2]


@pytest.mark.parametrize(
    "address", ["memory://", "sqlite:///a@b.db", "sqlite:////var/a@b/c.db", "http://[::1]:8000/x"]
)
def test_an_address_without_a_login_is_shown_whole(address: str) -> None:
    assert masked(address) == address


@pytest.mark.parametrize("address", [a for a in ADDRESSES if not a.startswith("http")])
def test_a_store_that_cannot_be_opened_is_named_without_its_login(address: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        open_store(address)
    assert SECRET not in str(refused.value)


def test_a_service_is_not_opened_as_a_store_nor_its_login_told() -> None:
    with pytest.raises(SettingsInvalid) as refused:
        open_store(ADDRESSES[0])
    assert SECRET not in str(refused.value)


async def test_a_service_that_does_not_answer_is_named_without_its_login(free_port: int) -> None:
    desk = RemoteDesk(f"http://ann:{SECRET}@127.0.0.1:{free_port}", Settings(), retry_seconds=0)
    with pytest.raises(StoreUnavailable) as refused:
        await desk.open()
    assert SECRET not in str(refused.value)
    assert str(free_port) in str(refused.value)


def test_a_wrong_value_that_holds_an_address_is_told_without_its_login() -> None:
    with pytest.raises(PostroomError) as refused:
        load({"fair_by": ADDRESSES[0]})
    assert SECRET not in str(refused.value)


# ---- whatever made them


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_seconds": -5},
        {"lease_seconds": "5"},
        {"lease_seconds": None},
        {"lease_seconds": float("nan")},
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"concurrency": True},
        {"port": 65536},
        {"store": 5},
        {"fair_by": "weight"},
        {"heartbeat_seconds": 31},
        {"lease_seconds": 1.5, "heartbeat_seconds": 1.0},
        {"max_item_bytes": "1MB"},
    ],
)
def test_settings_made_in_python_are_checked_as_any_other(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid, match=next(iter(wrong))):
        Settings(**wrong)
    with pytest.raises(SettingsInvalid, match=next(iter(wrong))):
        replace(Settings(), **wrong)


def test_the_bounds_of_every_setting_hold_in_python_too() -> None:
    for f in SETTING_FIELDS:
        for bound, past in (("low", -1), ("high", 1)):
            if f.metadata[bound] is not None:
                with pytest.raises(SettingsInvalid, match=f.name):
                    Settings(**{f.name: f.metadata[bound] + past})


def test_a_whole_number_may_stand_where_fractions_may() -> None:
    assert Settings(lease_seconds=30).beat_seconds == 5


def test_a_secret_of_the_wrong_type_is_not_told() -> None:
    with pytest.raises(SettingsInvalid) as refused:
        Settings(key=4711)  # type: ignore[arg-type]
    assert "4711" not in str(refused.value)


def test_a_file_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    toml = tmp_path / "postroom.toml"
    toml.write_bytes("app = 'büro:inbox'".encode("latin-1"))
    with pytest.raises(SettingsInvalid, match=r"postroom\.toml cannot be read"):
        load(toml=toml)
