PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup quickstart test test-all lint conformance clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

quickstart: $(READY)
	$(BIN)/offline-gntd quickstart

test: $(READY) lint
	$(BIN)/pytest

test-all: $(READY) lint
	$(BIN)/pytest -m "not conformance"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Other libraries as referees, each with the versions it needs, away from our own environment.
conformance: $(READY) .venv-conformance/.ready
	.venv-conformance/bin/pytest -m conformance

.venv-conformance/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-conformance
	.venv-conformance/bin/pip install --quiet --disable-pip-version-check --editable ".[dev]" "curvlinops-for-pytorch>=2.0"
	touch $@

clean:
	rm -rf .venv .venv-conformance build *.egg-info
