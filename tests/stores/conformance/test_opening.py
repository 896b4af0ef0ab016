"""What a store says of itself, and that opening and closing can be repeated."""

from __future__ import annotations

from tests.stores.conftest import Factory
from tests.stores.office import Office


async def test_a_store_says_what_it_is(office: Office, factory: Factory) -> None:
    capabilities = office.store.capabilities
    assert capabilities.name
    assert len(capabilities.durability.split()) > 2
    assert office.store.url.startswith(f"{capabilities.name}://")


async def test_opening_and_migrating_again_change_nothing(office: Office) -> None:
    job_id = await office.submit()
    before = await office.record(job_id)
    assert await office.store.migrate() == []
    assert await office.record(job_id) == before


async def test_closing_twice_is_closing(office: Office) -> None:
    await office.submit()
    await office.store.close()
    await office.store.close()
