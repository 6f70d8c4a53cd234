# Everything that is done with this repository. Each target sees to its own set-up: on Debian 12 or 13, or Ubuntu
# 24.04, with Python 3.11 to 3.14, make and a C compiler, `make test` is enough. What is there is not fetched again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PYTHON # the interpreter to make .venv with; empty: python3.11, then python3

RUN := scripts/run
PROGRAM_READY := .venv/.program-ready
PYTHON_READY := .venv/.ready
DOCS_READY := .venv/.docs-ready
RELEASE_READY := .venv/.release-ready
COVERAGE_READY := .venv/.coverage-ready

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: can-demo setup cni ## two nodes in this kernel, from annotation to bandwidth that holds; ARGS="--json FILE --keep"
	@$(RUN) k8s-rdma demo $(ARGS)

.PHONY: demo-picture
demo-picture: setup-tests cni ## records three pods on one link of the demo in docs/one-link.json, and draws docs/one-link.svg
	@$(RUN) python -m docs_site.picture

.PHONY: quick
quick: setup-tests ## tests of all packages that take almost all branches, about a minute: those that tests/quick.txt lists
	@directory=$$(mktemp -d) && $(RUN) pytest -q --quick $(BESIDE_EACH_OTHER) --basetemp="$$directory/t" $(ARGS) && rm -rf "$$directory"

.PHONY: quick-list
quick-list: ## tests/quick.txt, chosen from what `make coverage-map` recorded
	@$(RUN) env PYTHONPATH=tests python -m covering

.PHONY: coverage-map
coverage-map: setup-tests $(COVERAGE_READY) ## records which tests reach which functions, for ARGS=--changed: all tests, at twice their time, or those of ARGS
	@git diff --quiet HEAD -- src tests || { echo "coverage-map: commit your changes first, because a map holds for a commit" >&2; exit 1; }
	@rm -rf .cache/coverage && mkdir -p .cache/coverage && git rev-parse HEAD >.cache/coverage/commit
	@directory=$$(mktemp -d) && { $(RUN) pytest -q --record-coverage $(BESIDE_EACH_OTHER) --basetemp="$$directory/t" $(ARGS) || [[ $$? = 1 ]]; } && rm -rf "$$directory"
	@$(RUN) env PYTHONPATH=tests python -m coverage_map

# Tests of these files need more than set-up: the executable that a node has, the packages that make a release. If ARGS
# names files or folders, only theirs is made.
NEEDED = $(if $(call ran-of,tests/hardware),cni) $(if $(call ran-of,tests/deploy/test_release.py),$(RELEASE_READY))
ran-of = $(strip $(foreach path,$(or $(strip $(PATHS)),tests),$(filter $(path) $(path)/%,$(1)) $(filter $(1)/%,$(path))))
PATHS = $(foreach word,$(ARGS),$(patsubst %/,%,$(filter tests tests/%,$(patsubst ./%,%,$(firstword $(subst ::, ,$(word)))))))

.PHONY: test
test coverage-map: WORKERS = $(shell expr 2 '*' $$(nproc))
test: setup-tests $(NEEDED) ## all tests, in random order, warnings as errors; ARGS="-k word" for some of them, ARGS=--changed
ifdef ARGS
	@$(RUN) scripts/isolated pytest $(ARGS)
else
	@directory=$$(mktemp -d) && $(RUN) pytest $(BESIDE_EACH_OTHER) --basetemp="$$directory/t" && rm -rf "$$directory"
endif

# Each worker in namespaces of its own; who is done takes half of what another has left. Of all tests two run on a
# processor: half of their time they wait, for processes and clocks.
# Their directories are where paths are short: those of Unix sockets have 107 bytes.
BESIDE_EACH_OTHER = --dist worksteal --tx '$(WORKERS)*popen//python=scripts/isolated python'
WORKERS = $(shell nproc)

.PHONY: e2e
e2e: setup-tests ## scenarios on a real Kubernetes: K8S_RDMA_KUBE_BIN=FOLDER, see tests/cluster; ARGS="-k word"
	@[[ -n "$${K8S_RDMA_KUBE_BIN:-}" ]] || echo "e2e: K8S_RDMA_KUBE_BIN names no folder: on the stand-ins alone, see tests/cluster/README.md" >&2
	@$(RUN) scripts/isolated pytest tests/cluster $(ARGS)

.PHONY: lab
lab: lab-build cni ## guests with real SR-IOV and verbs of software: builds them, runs tests/lab; ARGS="-k word"
	@K8S_RDMA_LAB=$(CURDIR)/.cache/lab $(RUN) scripts/isolated python -m pytest tests/lab $(ARGS)

.PHONY: lab-build
lab-build: setup-tests lab-tools
	@$(RUN) python -m lab build

.PHONY: lab-shell
lab-shell: setup-tests lab-tools ## a shell in such a guest, with k8s-rdma set up and running
	@$(RUN) python -m lab shell

.PHONY: lab-report
lab-report: setup-tests lab-tools cni ## the evaluation on two such guests, written to docs/lab-report.md; a quarter of an hour
	@$(RUN) python -m lab report $(ARGS)

.PHONY: lab-can-run
lab-can-run: $(PYTHON_READY)
	@[[ $$(uname -m) != x86_64 ]] || scripts/setup-lab
	@$(RUN) python -m lab can-run

.PHONY: lab-tools
lab-tools: test-tools # one apt at a time
	@scripts/setup-lab

.PHONY: check
check: lint types layers unused wheel cni docs ## everything that needs no run: style, types, layers, dead code, the wheel, C warnings, links of the docs

.PHONY: lint
lint: $(PYTHON_READY)
	@echo "ruff" && $(RUN) ruff check --quiet
	@echo "ruff format" && $(RUN) ruff format --check --quiet
	@echo "shellcheck" && $(RUN) shellcheck --external-sources scripts/*.sh $(SCRIPTS) $(GUEST_SCRIPTS) .ci/run

	@echo "check-jsonschema" && for schema in $(SCHEMAS); do \
	  report=$$($(RUN) check-jsonschema --builtin-schema "vendor.$${schema%%:*}" $${schema#*:} 2>&1) || \
	  { echo "$$report"; exit 1; }; done

SCHEMAS := "github-workflows:.github/workflows/*.yml" "github-issue-forms:.github/ISSUE_TEMPLATE/[!c]*.yml" \
  "github-issue-config:.github/ISSUE_TEMPLATE/config.yml" "citation-file-format:CITATION.cff"
SCRIPTS := deploy/krew/kubectl-rdma $(addprefix deploy/image/,check-libraries install-program seal unpack-debian) \
  $(addprefix scripts/,build-image check-wheel isolated lock make-cni preflight run setup-helm setup-lab setup-packages setup-python setup-tools)
GUEST_SCRIPTS := $(addprefix lab/guest/,init boot.sh lib.sh bashrc lab-cable lab-node lab-pod lab-shell lab-sriov)

.PHONY: types
types: $(DOCS_READY)
	@echo "mypy" && $(RUN) mypy --no-error-summary
	@echo "mypy tests" && MYPYPATH=tests:. $(RUN) mypy --no-error-summary --config-file tests/mypy.ini tests
	@echo "mypy bench" && cd bench && MYPYPATH=../tests ../scripts/run mypy --no-error-summary --cache-dir ../.mypy_cache --config-file ../tests/mypy.ini .

.PHONY: layers
layers: $(PYTHON_READY)
	@echo "import-linter" && { report=$$($(RUN) lint-imports --no-logo) || { echo "$$report"; exit 1; }; }

.PHONY: unused
unused: $(PYTHON_READY)
	@echo "vulture" && $(RUN) vulture

.PHONY: wheel
wheel: $(PYTHON_READY) tools
	@scripts/check-wheel

.PHONY: docs
docs: $(DOCS_READY) ## the documentation as a site, build/site; a link or an anchor that leads nowhere fails
	@report=$$($(RUN) env NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict 2>&1) || { echo "$$report"; exit 1; }
	@echo "docs: build/site/index.html"

.PHONY: bench
bench: setup-tests cni ## the measurements of bench/; ARGS="-k word" for some of them
	@$(RUN) scripts/isolated python -m bench $(ARGS)

.PHONY: setup
setup: can-set-up ## the program, in .venv, and what the demo runs
	@$(MAKE) --jobs=2 $(PROGRAM_READY) tools

.PHONY: setup-tests
setup-tests: can-test $(PYTHON_READY) test-tools ## the same, and what tests need

.PHONY: can-demo
can-demo:
	@scripts/preflight folders namespaces

.PHONY: can-set-up
can-set-up:
	@scripts/preflight folders

.PHONY: can-test
can-test:
	@scripts/preflight folders compiler

$(PROGRAM_READY): requirements/program.txt pyproject.toml scripts/setup-python
	@scripts/setup-python
	@touch $@

$(PYTHON_READY): requirements/dev.txt scripts/setup-packages $(PROGRAM_READY)
	@scripts/setup-packages dev
	@touch $@

$(DOCS_READY): requirements/docs.txt scripts/setup-packages $(PYTHON_READY)
	@scripts/setup-packages docs
	@touch $@

$(COVERAGE_READY): requirements/coverage.txt scripts/setup-packages $(PYTHON_READY)
	@scripts/setup-packages coverage
	@touch $@

$(RELEASE_READY): requirements/release.txt requirements/runtime.txt scripts/setup-packages $(PYTHON_READY)
	@scripts/setup-packages release
	@echo "setup: environment of requirements/runtime.txt" && $(RUN) python -m deploy.release environment >/dev/null
	@touch $@

# No stamp: looking takes 50 ms, and a cache may bring this folder to a machine where they are not installed.
.PHONY: tools
tools:
	@scripts/setup-tools

.PHONY: test-tools
test-tools: $(PYTHON_READY)
	@scripts/setup-tools --tests

.PHONY: cni
cni: tools ## build/k8s-rdma-cni, the executable for /opt/cni/bin
	@scripts/make-cni

.PHONY: image
image: ## build/image/k8s-rdma-ARCH.tar, by buildah: ARCH=arm64, BASE=debootstrap, SOURCE=ADDRESS; see docs/image.md
	@scripts/build-image

.PHONY: image-test
image-test: setup-tests cni ## tests/image, on what `make image` built
	@compgen -G 'build/image/k8s-rdma-*.tar' >/dev/null || { echo "image-test: there is no image yet: make image" >&2; exit 1; }
	@for archive in build/image/k8s-rdma-*.tar; do \
	  echo "$$archive" && K8S_RDMA_IMAGE=$$archive $(RUN) scripts/isolated pytest tests/image $(ARGS); done

.PHONY: release
release: $(RELEASE_READY) ## dist/VERSION, all files of a release: VERSION=X.Y.Z, SOURCE=ADDRESS, IMAGE=REPOSITORY, KEY=FILE; see docs/release.md
	@$(RUN) python -m deploy.release build "$(VERSION)" --source "$(SOURCE)" --repository "$(IMAGE)" $(if $(KEY),--key "$(KEY)") $(ARGS)

.PHONY: release-sign
release-sign: ## dist/VERSION/SHA256SUMS.sig, where nothing is built; needs python3 and ssh-keygen alone: VERSION=X.Y.Z, KEY=FILE
	@python3 -m deploy.release.signing "dist/$(VERSION)" --key "$(KEY)"

.PHONY: release-check
release-check: setup-tests $(RELEASE_READY) ## what `make release` made, as users verify and install it: VERSION=X.Y.Z, SIGNERS=FILE
	@$(RUN) python -m deploy.release check "dist/$(VERSION)" $(if $(SIGNERS),--signers "$(SIGNERS)") $(ARGS)
	@K8S_RDMA_RELEASE="$(CURDIR)/dist/$(VERSION)" $(RUN) scripts/isolated pytest tests/cluster/test_release.py

.PHONY: release-again
release-again: $(RELEASE_READY) ## makes dist/VERSION again in a new clone, and compares the bytes: VERSION=X.Y.Z
	@$(RUN) python -m deploy.release reproduce "dist/$(VERSION)"

.PHONY: proto
proto: $(PYTHON_READY) ## the generated modules of protocol buffers, made from their .proto files
	@$(RUN) python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/k8s_rdma/wire/pb/*.proto src/k8s_rdma_demo/pb/*.proto

.PHONY: chart
chart: $(PYTHON_READY) ## what is made of deploy/chart: the values' schema, deploy/manifests, the table in docs/permissions.md
	@$(RUN) python -m deploy.rendering

.PHONY: tables
tables: $(PYTHON_READY) ## the tables of docs/ that are made from the code
	@$(RUN) python -m docs_site.reference.written
	@$(RUN) env PYTHONPATH=tests python -m doctor.findings_page

.PHONY: policies
policies: $(PYTHON_READY) ## the comparison of placement policies in docs/simulate.md; ten minutes
	@$(RUN) python -m bench.compare_policies

.PHONY: fail-over
fail-over: setup-tests ## the table of fail-overs in docs/extender-availability.md: K8S_RDMA_KUBE_BIN=FOLDER, see tests/cluster; ten minutes
	@$(RUN) scripts/isolated env PYTHONPATH=tests:. python -m bench.fail_over

.PHONY: lock
lock: $(PYTHON_READY) ## pin what pyproject.toml asks for; UPGRADE=1 for the newest of everything
	@scripts/lock

.PHONY: clean
clean: ## remove everything that was made here
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
