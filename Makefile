# Two commands do everything: `make chat` opens the chat, `make test` runs the tests.
# TORCH=cpu|cuda picks the torch build; by default cuda where nvidia-smi answers, else cpu.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
ARGS   ?=

.PHONY: chat test lint bench demo-eval clean
chat: $(VENV)/.installed
	@$(BIN)/dsv4chat $(ARGS)

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python -m engine.bench $(ARGS)

demo-eval: $(VENV)/.installed-dev
	$(BIN)/python -m tools.demo.evaluate $(ARGS)

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	TORCH=$(TORCH) tools/install_torch.sh $(BIN)/pip
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
