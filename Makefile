# A thin wrapper for those who have make; run.py does the work.
.DEFAULT_GOAL := help
.PHONY: help serve check test campaign bench format setup

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
serve: ## start the inbox
	python3 run.py
setup: ## make the environment for developers
	python3 run.py setup
format: setup ## write all files as the format check wants them
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .
check: ## format, lint, types, import contracts
	python3 run.py check
test: ## all that CI runs
	python3 run.py test
campaign: ## the long fault campaigns
	python3 run.py campaign
bench: ## the measurements
	python3 run.py bench
