"""HTTP: `/jobs`, `/leases` and what operators read; every request checked, every error a problem document."""
