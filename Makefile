PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup quickstart docs results-pages test test-fast test-all lint types soak coverage conformance peers clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

quickstart: $(READY)
	$(BIN)/offline-gntd quickstart

# one process per core
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(READY) lint
	$(BIN)/pytest $(PARALLEL)

# the mathematics, the algorithms, settings, results and layers: under 30 seconds
FAST := networks kfac gauss_newton policy_gradient td3_bc q_learning bc bcq cql iql rebrac autograd continuous \
	transitions layers configuration compatibility results runs lock d4rl statistics
test-fast: $(READY)
	$(BIN)/pytest $(PARALLEL) $(FAST:%=tests/test_%.py)

test-all: .venv/.ready-all lint
	$(BIN)/pytest -m "not conformance and not soak"

# the engines and logs that are extras, and a browser: a Chromium of the system's, else one of playwright's own
.venv/.ready-all: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,docs,notebook,browser,ogbench,ray,slurm,tensorboard,wandb]"
	command -v chromium || command -v chromium-browser || command -v google-chrome || $(BIN)/playwright install chromium
	touch $@

# the site, in site/; it needs no network to be read
docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

.venv/.ready-docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,docs]"
	touch $@

# docs/results/, the results in README.md and the committed tables in analysis/
results-pages: $(READY)
	$(BIN)/python docs/generate.py

lint: $(READY) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# random faults (kills, stops, flipped bits, a full disk) against a small grid; its bits are compared
SECONDS ?= 600
soak: $(READY)
	SOAK_SECONDS=$(SECONDS) $(BIN)/pytest -s -m soak tests/test_soak.py

coverage: $(READY)
	$(BIN)/pytest --cov --cov-report=term

# Other libraries as referees, each with the versions it needs, away from our own environment.
conformance: $(READY) .venv-conformance/.ready .venv-d3rlpy/.ready .venv-d4rl/.ready .venv-rliable/.ready
	.venv-conformance/bin/pytest -m conformance tests/conformance/test_curvlinops.py
	PYTHONPATH=. .venv-d3rlpy/bin/pytest --noconftest -m conformance tests/conformance/test_d3rlpy.py
	$(BIN)/pytest -m conformance tests/conformance/test_against_d4rl.py
	PYTHONPATH=. .venv-rliable/bin/pytest --noconftest -m conformance tests/conformance/test_rliable.py

.venv-conformance/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-conformance
	.venv-conformance/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]" "curvlinops-for-pytorch>=2.0"
	touch $@

# d3rlpy pins a gymnasium older than ours, so the package is not installed beside it: the algorithms need torch only
.venv-d3rlpy/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-d3rlpy
	.venv-d3rlpy/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt d3rlpy torch "numpy>=2" "pytest>=8"
	touch $@

# what `offline-gntd bench --peers` asks
peers: .venv-d3rlpy/.ready

# d4rl's dependencies cannot be installed together any more, and its datasets need none of them
.venv-d4rl/.ready:
	$(PYTHON) -m venv .venv-d4rl
	.venv-d4rl/bin/pip install --quiet --disable-pip-version-check --no-deps d4rl==1.1 gym==0.24.1 h5py tqdm numpy
	touch $@

# rliable works with a pandas older than 3; the statistics need numpy only
.venv-rliable/.ready:
	$(PYTHON) -m venv .venv-rliable
	.venv-rliable/bin/pip install --quiet --disable-pip-version-check rliable "pandas<3" "numpy>=2" "pytest>=8"
	touch $@

clean:
	rm -rf .venv .venv-conformance .venv-d3rlpy .venv-d4rl .venv-rliable build dist site *.egg-info
