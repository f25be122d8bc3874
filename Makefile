# make demo    see it work: a lab, traffic, rates by method, a ledger
# make test    all tests; those that need root run in namespaces of their own
# make test-fast  those that need neither root nor a lab, in a minute
# make lint    formatting, clippy, documentation, scripts
# make bench   ten minutes: the bars, what moved since docs/bench.json: ROUNDS=5 BASE=other.json
# make bench-record  writes that file anew, from a run of the same kind
# make readme  the tables and the chart of README.md and docs/bench.md, of that file; bench-record does it, too
# make vm-test other kernels, and drivers of real cards, in QEMU: KERNELS="7.2" DRIVERS="igb"
# make install the command, into PREFIX/bin

PREFIX ?= /usr/local
CARGO ?= cargo
# One command for all that uses it: with other targets cargo would choose other features of the
# dependencies (a test's tempfile needs more of rustix) and build them anew.
RELEASE := $(CARGO) build --release --workspace --bins --examples
TARGET := $(or $(CARGO_TARGET_DIR),target)
SLUICE := $(TARGET)/release/sluice
# What is measured to be compared, and with what.
ROUNDS ?= 5
SHORT := bench all --peers --rounds $(ROUNDS) --seconds 300ms --rules 1,100 --no-causes --json
BASE ?= docs/bench.json
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$$PATH",)

.PHONY: all setup demo test test-fast lint bench bench-record bench-run readme vm-test install clean

all:
	$(RELEASE)

setup:
	./scripts/setup.sh

demo: setup
	$(RELEASE)
	$(SUDO) ./scripts/demo.sh

test: setup
	./scripts/test.sh

test-fast:
	./scripts/test.sh --fast

lint: setup
	./scripts/lint.sh

bench: bench-run
	$(SLUICE) bench check $(TARGET)/bench.json --compare $(BASE)

bench-record: bench-run
	@grep -q '"complete":true' $(TARGET)/bench.json || { echo "the run was stopped: $(BASE) stays" >&2; exit 1; }
	cp $(TARGET)/bench.json $(BASE)
	$(MAKE) readme

bench-run: setup
	$(RELEASE)
	$(SUDO) $(SLUICE) $(SHORT) >$(TARGET)/bench.json

readme:
	$(RELEASE)
	$(SLUICE) bench show docs/bench.json --markdown README.md --svg docs/bench.svg
	$(SLUICE) bench show docs/bench.json --markdown docs/bench.md

vm-test: setup
	./scripts/vm-test.sh

install:
	@test -x $(SLUICE) || { echo "run make first, as yourself" >&2; exit 1; }
	install -D -m 0755 $(SLUICE) $(DESTDIR)$(PREFIX)/bin/sluice

clean:
	$(CARGO) clean
