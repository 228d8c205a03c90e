# make run: measure this machine. make test: run all tests. Nothing is installed outside .venv.
# make run ARGS="--suite=standard" passes more flags to the orchestrator.

VENV := .venv
PYTHON := $(VENV)/bin/python
HOSTS := hosts.yml
VARIANTS := $(basename $(notdir $(wildcard containers/requirements/*.in)))

# The CUDA build of TensorFlow if the machine has an NVIDIA driver, otherwise the CPU build.
BUILD := $(shell { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L; } >/dev/null 2>&1 && echo cuda || echo cpu)
# For make gpu-validation: its output folder and, optionally, a checkout of https://github.com/tensorflow/benchmarks.
OUT := gpu-validation
PEER :=
# For make test-pyxis: the plugin, built against this machine's Slurm.
PYXIS := /usr/local/lib/slurm/spank_pyxis.so

# The newest available Python that the lock files support.
BASE_PYTHON := $(shell for python in python3.13 python3.12 python3.11 python3; do \
    $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
    && { command -v $$python; break; }; done)

COMPILE = $(VENV)/bin/uv pip compile --quiet --upgrade --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header

.PHONY: run test test-all test-fast test-kubernetes test-faults test-fresh-hosts test-engines test-apptainer test-pyxis test-renting test-null-gpu gpu-validation check lock clean help

run: $(VENV)/$(BUILD).stamp $(HOSTS) $(VENV)/bin/tfbench  ## Measure this machine and print the table
	@$(VENV)/bin/tfbench run --hosts $(HOSTS) $(ARGS)

# Six processes on whatever machine: two train, the others mostly wait for engines and queues.
SPREAD := --numprocesses=6 --dist=loadscope --no-loadscope-reorder
# TensorFlow allocates large tensors anew in every step. With small pages, the kernel takes up to a third of the CPU time for them.
HUGE_PAGES := glibc.malloc.hugetlb=1

test: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Run all tests but the rare ones, against real engines where available
	@GLIBC_TUNABLES=$(HUGE_PAGES) $(PYTHON) -m pytest -m "not rare" $(SPREAD) $(ARGS)

test-all: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Run the rare ones too, with all examples
	@TFBENCH_TEST_EXAMPLES=all GLIBC_TUNABLES=$(HUGE_PAGES) $(PYTHON) -m pytest $(SPREAD) $(ARGS)

test-fast: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Run the tests that need no engine and no training: three quarters of a minute
	@TFBENCH_TEST_EXAMPLES=few $(PYTHON) -m pytest tests/unit -m "not slow and not tensorflow" $(SPREAD) --numprocesses=auto $(ARGS)

test-kubernetes: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test on a real Kubernetes, which is built first (needs root; takes minutes)
	@TFBENCH_TEST_KUBERNETES=1 $(PYTHON) -m pytest tests/real/faults/test_real_kubernetes.py $(ARGS)

test-faults: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test random schedules of faults and every hostile answer (needs root; ARGS="--count=1000 --seed=1")
	@TFBENCH_TEST_FAULTS="$(ARGS)" TFBENCH_TEST_EXAMPLES=all $(PYTHON) -m pytest -s tests/real/faults/test_schedules.py \
	    tests/unit/orchestrate/test_hostile_answers.py

test-fresh-hosts: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test 50 fresh ssh hosts behind one jump host (needs an sshd; takes minutes)
	@TFBENCH_TEST_FRESH_HOSTS=50 $(PYTHON) -m pytest tests/real/contact/test_fresh_hosts.py $(ARGS)

test-engines: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test on Docker 20.10 to 28.5 and Podman, also rootless, and print the table (needs root; downloads 0.6 GB once)
	@TFBENCH_TEST_MATRIX=1 TFBENCH_TEST_ENGINES=require $(PYTHON) -m pytest tests/real/engines/matrix tests/real/engines/test_cpu_image.py $(ARGS)

test-apptainer: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test apptainer on a real Slurm of Debian sid (needs root; downloads 0.2 GB once)
	@TFBENCH_TEST_APPTAINER=1 TFBENCH_TEST_ENGINES=require $(PYTHON) -m pytest tests/real/slurm/test_user_clusters.py -k apptainer $(ARGS)

test-pyxis: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test pyxis and enroot, installed here, on a real Slurm (needs root; PYXIS=file)
	@TFBENCH_TEST_PYXIS=$(PYXIS) TFBENCH_TEST_ENGINES=require $(PYTHON) -m pytest tests/real/slurm/test_user_clusters.py -k pyxis $(ARGS)

test-renting: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Check files for SkyPilot, dstack, Vast and Ansible with these tools (downloads 300 MB)
	@TFBENCH_TEST_RENTING=1 $(PYTHON) -m pytest tests/real/renting $(ARGS)

test-null-gpu: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Test TensorFlow's CUDA build on GPUs that compute nothing (downloads 0.6 GB once)
	@$(PYTHON) -m tests.support.null_gpu
	@TFBENCH_TEST_NULL_GPU=1 $(PYTHON) -m pytest tests/real/null_gpu $(SPREAD) --numprocesses=2 $(ARGS)

gpu-validation: $(VENV)/$(BUILD).stamp  ## Verify everything on a GPU, step by step, in OUT=folder; can be resumed (PEER=checkout)
	@$(PYTHON) -m studies.gpu_validation --out=$(OUT) $(if $(PEER),--peer=$(PEER)) $(ARGS)

check: $(VENV)/dev.stamp  ## Lint, format check, types and import contracts
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@$(VENV)/bin/lint-imports --no-cache --no-logo
	@if command -v actionlint >/dev/null; then actionlint; fi

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

# The simplest hosts file: this machine, without Docker. An existing file is never changed.
hosts.yml: | $(VENV)/bin/tfbench
	@$(VENV)/bin/tfbench init --hosts $@

# ---- environments. A stamp is newer than its lock: the second run installs nothing. Compiling every module would take
# longer than all else: what is imported is compiled then, once.
unexport PYTHONDONTWRITEBYTECODE
$(VENV)/%.stamp: requirements/%.txt | $(VENV)/bin/pip
	@echo "make: installing $< into $(VENV) (once; several hundred megabytes)" >&2
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-compile \
	    --requirement $<
	@touch $@

# The command, which runs this checkout: its dependencies are those of the stamp, and setuptools is one of them.
$(VENV)/bin/tfbench: | $(VENV)/$(BUILD).stamp
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

$(VENV)/bin/pip:
	@[ -n "$(BASE_PYTHON)" ] || { echo "make: needs Python 3.11, 3.12 or 3.13; found: \
	$$(python3 --version 2>/dev/null || echo none). On Debian and Ubuntu: apt install python3 python3-venv" >&2; exit 2; }
	@$(BASE_PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); echo "make: $(BASE_PYTHON) cannot make \
	environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

lock: $(VENV)/dev.stamp  ## Update all lock files to the newest versions that fit
	@[ -x $(VENV)/bin/uv ] || $(PYTHON) -m pip install --quiet uv
	$(COMPILE) --universal --python-version 3.11 --extra cpu pyproject.toml --output-file requirements/cpu.txt
	$(COMPILE) --universal --python-version 3.11 --constraint requirements/cpu.txt --extra cuda pyproject.toml \
	    --output-file requirements/cuda.txt
	$(COMPILE) --universal --python-version 3.11 --constraint requirements/cpu.txt --extra dev pyproject.toml \
	    --output-file requirements/dev.txt
	$(COMPILE) --universal --python-version 3.11 requirements/ci.in --output-file requirements/ci.txt
	$(MAKE) $(addprefix lock-,$(VARIANTS))

lock-%:
	$(COMPILE) --python-version 3.11 --python-platform x86_64-manylinux_2_28 --only-binary :all: \
	    containers/requirements/$*.in --output-file containers/requirements/$*.txt

.PHONY: site
site: $(VENV)/$(BUILD).stamp $(VENV)/dev.stamp  ## Build the documentation site in build/site
	@$(PYTHON) -m sphinx -W -q -d build/trees -c docs . build/site
	@echo "build/site/README.html"

.PHONY: answers
answers: $(VENV)/$(BUILD).stamp  ## Update docs/answers.md from the published figures and prices
	@$(PYTHON) -m studies.pages.answers

.PHONY: pictures
pictures: $(VENV)/$(BUILD).stamp  ## Measure this machine's CPU and redraw the pictures of the documentation (10 minutes; needs Chromium)
	@$(PYTHON) -m studies.pages.pictures $(ARGS)

clean:  ## Remove environments and caches; runs stay
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
