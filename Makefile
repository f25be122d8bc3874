# make demo    see it work: a lab, traffic, rates by method, a ledger
# make test    all tests; those that need root run in namespaces of their own
# make lint    formatting, clippy, documentation, scripts
# make bench   the numbers of docs/bench.md, measured again: RUNS=5 SECONDS=3
# make vm-test other kernels, and drivers of real cards, in QEMU: KERNELS="7.2" DRIVERS="igb"
# make install the command, into PREFIX/bin

PREFIX ?= /usr/local
CARGO ?= cargo
# One command for all that uses it: with other targets cargo would choose other features of the
# dependencies (a test's tempfile needs more of rustix) and build them anew.
RELEASE := $(CARGO) build --release --workspace --bins --examples
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$$PATH",)

.PHONY: all setup demo test lint bench vm-test install clean

all:
	$(RELEASE)

setup:
	./scripts/setup.sh

demo: setup
	$(RELEASE)
	$(SUDO) ./scripts/demo.sh

test: setup
	./scripts/test.sh

lint: setup
	./scripts/lint.sh

bench: setup
	$(RELEASE)
	$(SUDO) ./scripts/bench.sh
	$(SUDO) ./scripts/bench-send.sh
	$(SUDO) ./scripts/bench-forward.sh
	./scripts/bench-memif.sh
	$(SUDO) $(or $(CARGO_TARGET_DIR),target)/release/sluice bench check

vm-test: setup
	./scripts/vm-test.sh

install:
	@test -x $(or $(CARGO_TARGET_DIR),target)/release/sluice || { echo "run make first, as yourself" >&2; exit 1; }
	install -D -m 0755 $(or $(CARGO_TARGET_DIR),target)/release/sluice $(DESTDIR)$(PREFIX)/bin/sluice

clean:
	$(CARGO) clean
