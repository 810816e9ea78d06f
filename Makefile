# Everything works from a fresh clone with Python 3.10 or newer and g++ alone. What is installed
# goes to .venv, what is compiled to build/ and src/pinferry/. `make help` lists the targets.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
# Compiler warnings are errors in every check. They do not stop `make demo`: g++ may be any.
export PINFERRY_WERROR ?= 1

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory
# The caller's own virtual environment must not leak into ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

say = @printf '\n== %s\n' '$(1)'

.PHONY: help
help:
	@echo 'make demo      build pinferry and show it at work'
	@echo 'make test      every check: lint, types, native, abi, pytest; each is a target of its own'
	@echo 'make venv      install PyTorch and the tools into $(VENV)'
	@echo 'make build     compile the extension modules'
	@echo 'make format    rewrite Python and C++ files to the house form'
	@echo 'make clean     remove what was compiled and cached; $(VENV) stays'

# ---- environment and extension modules

DEPS_STAMP := $(VENV)/deps.stamp
BUILD_STAMP := build/extensions$(if $(filter 1,$(PINFERRY_WERROR)),-werror).stamp
EXTENSION_SOURCES := csrc/native csrc/bridge $(wildcard csrc/native/*.[ch]pp csrc/bridge/*.[ch]pp)

.PHONY: venv build python compiler
venv: $(DEPS_STAMP)
build: $(BUILD_STAMP)

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo 'pinferry needs Python 3.10 or newer, and "$(PYTHON)" is not one.' \
	        'Name one: make PYTHON=/path/to/python3' >&2; exit 1; }

compiler:
	@command -v $(CXX) > /dev/null || { \
	    echo 'pinferry needs a C++17 compiler, and "$(CXX)" was not found.' \
	        'Install g++, or name one: make CXX=/path/to/g++' >&2; exit 1; }

$(DEPS_STAMP): pyproject.toml tools/requirements.py | python
	$(call say,installing PyTorch and the tools into $(VENV))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/requirements.py > $(VENV)/requirements.txt
	@DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --quiet '$(TORCH)' \
	    --requirement $(VENV)/requirements.txt
	@touch $@

# setup.py itself compiles only what is stale, so this is quick after the first time.
$(BUILD_STAMP): $(DEPS_STAMP) setup.py $(EXTENSION_SOURCES) | compiler
	$(call say,building the extension modules)
	@CXX='$(CXX)' $(BIN)/python -m pip install --quiet --quiet --no-build-isolation --no-deps --editable .
	@mkdir -p $(@D) && touch $@

# ---- what a user runs

.PHONY: demo test format clean
demo:
	@$(MAKE) PINFERRY_WERROR=$(if $(wildcard build/extensions-werror.stamp),1,0) build
	@$(BIN)/pinferry demo

test:
	@for check in lint types native abi pytest; do $(MAKE) $$check; done

format: venv
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(CPP_FILES)

clean:
	rm -rf build dist src/*.egg-info src/pinferry/*.so
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .rumdl_cache

# ---- checks of the text

CPP_FILES = $(wildcard csrc/*/*.[ch]pp csrc/*.cu csrc/*/*.cu)

.PHONY: lint types mypy stubtest pytest
lint: venv
	$(call say,ruff check)
	@$(BIN)/ruff check .
	$(call say,ruff format)
	@$(BIN)/ruff format --check .
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(call say,codespell)
	@$(BIN)/codespell
	$(call say,links and anchors in Markdown)
	@$(BIN)/rumdl check .

types: mypy stubtest

mypy: build
	$(call say,mypy)
	@$(BIN)/mypy src/pinferry tests setup.py $(wildcard examples/*.py tools/*.py)

stubtest: build/stubtest/stamp

# PyTorch is imported first because the bridge finds its libraries through it. In a folder of its
# own, because stubtest would overwrite the cache of mypy.
STUBS := $(wildcard src/pinferry/_native.pyi src/pinferry/_torch.pyi)
ALLOWLIST := tools/stubtest-allowlist.txt
build/stubtest/stamp: $(BUILD_STAMP) $(STUBS) $(ALLOWLIST)
	$(call say,stubtest)
	@mkdir -p $(@D)
	@cd $(@D) && $(CURDIR)/$(BIN)/python -c \
	    'import sys, torch; from mypy.stubtest import main; sys.exit(main())' \
	    --ignore-unused-allowlist --allowlist $(CURDIR)/$(ALLOWLIST) \
	    $(STUBS:src/pinferry/%.pyi=pinferry.%)
	@touch $@

# Beside the one in $(VENV), for the test that trains with it.
OLDEST_DEEPSPEED := build/deepspeed-0.17.6
$(OLDEST_DEEPSPEED): | venv
	$(call say,installing an older DeepSpeed into $@)
	@DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(BIN)/python -m pip install --quiet --quiet --no-deps \
	    --no-build-isolation --target $@.part $(@F:deepspeed-%=deepspeed==%)
	@mv $@.part $@

# DeepSpeed compiles with ninja, which pip has put beside pytest.
pytest: build fake-driver $(OLDEST_DEEPSPEED)
	@# An interrupted compilation leaves one, and the next waits for ever.
	@rm -f build/deepspeed/*/lock $(OLDEST_DEEPSPEED)/operators/*/lock
	$(call say,pytest)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n $(JOBS) --maxprocesses 8

# ---- C++: unit programs, the stand-in driver, the driver's declarations
# Each csrc/testing/test_NAME.cpp is one program, linked with the core without its Python bindings.

CORE := $(basename $(filter-out csrc/native/bind_%,$(wildcard csrc/native/*.cpp)))
PROGRAMS := $(basename $(notdir $(wildcard csrc/testing/test_*.cpp)))
FAKE_DRIVER := libpinferry_fake_driver.so
FAKE_DRIVER_PARTS := testing/fake_driver native/host_stream native/process
WARNINGS := -Wall -Wextra -Werror
TEST_FLAGS := -std=c++17 -g -fPIC -pthread

# A folder under build/ for each way to compile them. Warnings count in the plain one only: g++ has
# false ones beside a sanitizer.
VARIANTS := native native-address native-thread
VARIANT_FLAGS_native := -O2 $(WARNINGS)
VARIANT_FLAGS_native-address := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
VARIANT_FLAGS_native-thread := -O1 -fsanitize=thread

# g++ does not know how the kernel asks for unrolling.
build/native/testing/test_gather.o: VARIANT_FLAGS_native += -Wno-unknown-pragmas

define variant_rules
build/$(1)/%.o: csrc/%.cpp Makefile
	@mkdir -p $$(@D)
	@$$(CXX) $$(TEST_FLAGS) $$(VARIANT_FLAGS_$(1)) -MMD -MP -c $$< -o $$@

$$(PROGRAMS:%=build/$(1)/%): build/$(1)/%: build/$(1)/testing/%.o $$(CORE:csrc/%=build/$(1)/%.o)
	@$$(CXX) $$(TEST_FLAGS) $$(VARIANT_FLAGS_$(1)) $$^ -o $$@ -ldl

build/$(1)/$$(FAKE_DRIVER): $$(FAKE_DRIVER_PARTS:%=build/$(1)/%.o)
	@$$(CXX) -shared $$(TEST_FLAGS) $$(VARIANT_FLAGS_$(1)) $$^ -o $$@

.SECONDARY: $$(PROGRAMS:%=build/$(1)/testing/%.o)
-include $$(wildcard build/$(1)/*/*.d)
endef
$(foreach variant,$(VARIANTS),$(eval $(call variant_rules,$(variant))))

.PHONY: native native-programs fake-driver abi
native-programs: $(foreach variant,$(VARIANTS),$(PROGRAMS:%=build/$(variant)/%) \
    build/$(variant)/$(FAKE_DRIVER))
	@:

native: | compiler
	$(call say,native unit programs)
	@$(MAKE) -j$(JOBS) native-programs
	@for variant in $(VARIANTS); do for program in $(PROGRAMS); do \
	    printf '%-40s ' "$$variant/$$program"; \
	    PINFERRY_FAKE_DRIVER=$(CURDIR)/build/$$variant/$(FAKE_DRIVER) \
	        build/$$variant/$$program; \
	done; done

fake-driver: build/native/$(FAKE_DRIVER)

# The package nvidia-cuda-runtime holds NVIDIA's cuda.h, in a folder named after its release.
abi: venv | compiler
	$(call say,declarations of the CUDA driver against its own header)
	@headers=$$(echo $(VENV)/lib/python*/site-packages/nvidia/*/include/cuda.h); \
	    $(CXX) -std=c++17 $(WARNINGS) -fsyntax-only -isystem "$$(dirname "$${headers%% *}")" \
	    csrc/testing/driver_abi.cpp csrc/testing/driver_abi_optional.cpp
