# Needs python3 (3.11 to 3.14) and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := demo
# uv compares every file with the hashes of constraints.txt, those of build backends too.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python \
    --constraint constraints.txt --build-constraints constraints.txt

# The tests start some hundred processes. Without compiled modules each of them takes 2.8 s more to
# import jax and stillbox; images of containers often forbid them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test quick proof lint bench demo site dist smoke lock audit clean

setup: $(STAMP)

$(STAMP): pyproject.toml packages/legacy/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else "stillbox needs Python 3.11 to 3.14; name one with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
	$(INSTALL) --editable '.[dev]' --editable packages/legacy
	touch $@

# Folders such as data/ and runs/ of whoever works here are not linted.
CODE := benchmarks conftest.py packages stillbox tests tools
lint: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --package stillbox --package stillbox_legacy
	$(BIN)/lint-imports

test: setup lint
	$(BIN)/python -m pytest -m 'not slow' --numprocesses 2 --dist loadgroup

# Packages below models and training: their tests compile small functions only.
QUICK := $(addprefix tests/, boxes checkpoints evaluation experiment inputs predicting records textformat tools)

# The time limit keeps it quick: a slower test belongs to another package.
quick: setup
	$(BIN)/python -m pytest -m 'not slow' --numprocesses 2 --dist loadgroup --timeout 30 $(QUICK)

proof: setup
	$(INSTALL) --editable '.[proof]'
	$(BIN)/python -m pytest -m 'proof or slow' --durations 0

# A few minutes of benchmarks/, with the peers in environments of their own under the cache folder.
bench: setup
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/convolutions.py --shapes 4x40x256 8x75x64
	$(BIN)/python benchmarks/suppression.py
	$(BIN)/python benchmarks/scoring.py --images 1000

# The same commands that a user would type. The recipe says where the data lies.
demo: setup
	$(BIN)/stillbox data scenes --output $(DEMO)/data --train 5000 --overwrite
	$(BIN)/stillbox train demo_scenes --model-dir $(DEMO)/model
	$(BIN)/stillbox evaluate $(DEMO)/model --output $(DEMO)/report
	@echo "look at $(DEMO)/report/report.html"

# The documentation with a sidebar and search; a broken link or anchor is an error.
site: setup
	$(INSTALL) --editable '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "to read it: python3 -m http.server --directory site"

# Wheels and sdists of the last commit, built twice and compared.
dist: setup
	$(BIN)/python -m tools.distribution dist

# The wheels in clean environments, one for each supported Python that is there.
PYTHONS ?= $(shell for minor in 11 12 13 14; do python3.$$minor --version >/dev/null 2>&1 && echo python3.$$minor; done)
smoke: dist
	$(BIN)/python -m tools.smoke dist/stillbox-*.whl $(PYTHONS)

# All pins again, as near to the present ones as pyproject.toml allows; `make lock UPGRADE=--upgrade` takes the newest.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' $(UPGRADE)
EXTRAS := $(addprefix --extra , cuda tpu tensorboard wandb mlflow saved_model tf tflite openvino cloud parquet serve ray weights all dev site proof audit)
lock: setup
	$(LOCK) $(EXTRAS) pyproject.toml --output-file constraints.txt

# Known vulnerabilities of the pinned versions.
audit: setup
	$(INSTALL) --editable '.[audit]'
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

clean:
	rm -rf $(VENV) $(DEMO) dist site .pytest_cache
