"""The inbox's own door, ``/inbox/tasks``: its own words over the same jobs (contract, section 3)."""
