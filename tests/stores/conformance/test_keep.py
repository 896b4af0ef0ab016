"""Small named values, written only over what the writer saw."""

from __future__ import annotations

import asyncio

from tests.stores.office import Office


async def test_a_value_is_kept_and_found_by_prefix_in_the_order_of_names(office: Office) -> None:
    for name in ("plan/b", "plan/a", "other", "plan"):
        assert await office.store.keep(name, f'"{name}"', before=None)
    assert list((await office.store.kept("plan/")).items()) == [
        ("plan/a", '"plan/a"'),
        ("plan/b", '"plan/b"'),
    ]
    assert list(await office.store.kept("")) == ["other", "plan", "plan/a", "plan/b"]
    assert await office.store.kept("nothing") == {}


async def test_signs_of_patterns_are_letters_in_a_prefix(office: Office) -> None:
    for name in ("a%c", "abc", "a_c", "a*c", "a[b]c", "A%c", "a%é"):
        assert await office.store.keep(name, "1", before=None)
    assert list(await office.store.kept("a%")) == ["a%c", "a%é"]
    assert list(await office.store.kept("a_")) == ["a_c"]
    assert list(await office.store.kept("a*")) == ["a*c"]
    assert list(await office.store.kept("a[b")) == ["a[b]c"]


async def test_a_value_is_written_only_over_the_one_that_was_seen(office: Office) -> None:
    assert await office.store.keep("n", "1", before=None)
    assert not await office.store.keep("n", "2", before=None)
    assert not await office.store.keep("n", "2", before="0")
    assert await office.store.keep("n", "2", before="1")
    assert await office.store.kept("n") == {"n": "2"}


async def test_a_value_is_removed_only_as_it_was_seen(office: Office) -> None:
    assert await office.store.keep("n", "1", before=None)
    assert not await office.store.keep("n", None, before="2")
    assert await office.store.keep("n", None, before="1")
    assert await office.store.kept("") == {}
    assert not await office.store.keep("n", None, before="1")
    assert await office.store.keep("n", None, before=None)
    assert await office.store.kept("") == {}


async def test_of_many_writers_at_once_one_is_first(office: Office) -> None:
    answers = await asyncio.gather(*(office.store.keep("n", str(n), before=None) for n in range(20)))
    assert sum(answers) == 1
    assert await office.store.kept("n") == {"n": str(answers.index(True))}


async def test_large_values_come_back_byte_for_byte(office: Office) -> None:
    value = '{"é":"' + "好" * 100_000 + '"}'
    assert await office.store.keep("n", value, before=None)
    assert await office.store.keep("n", value + " ", before=value)
    assert (await office.store.kept("n"))["n"] == value + " "
