# make               the command, in release mode
# make demo          see it work: a lab, traffic, rates by method, a ledger
# make demo-scrub    a web server under a flood, without and with the scrubber
# make test          all tests; those that need root run in namespaces of their own
# make test-fast     tests that need neither root nor a lab, in a minute
# make lint          formatting, clippy, documentation, scripts
# make bench         ten minutes: thresholds, and changes since docs/bench.json: ROUNDS=5 BASE=other.json
# make bench-record  writes docs/bench.json from such a run, then `make readme`
# make readme        writes the tables and the chart of README.md and docs/bench.md from docs/bench.json
# make vm-test       other kernels, and drivers of real cards, in QEMU: KERNELS="7.2" DRIVERS="igb"
# make soak          an hour: netmap programs that scribble, are killed, or send random requests: SEEDS=1000 CYCLES=500
# make soak PARTS=scrub   half an hour: packets on which the XDP program and its oracle decide: PAIRS=100000000
# make install       after make: installs the command, its library, manual pages, completions, unit and documents into PREFIX
# make help          this list

PREFIX ?= /usr/local
SHARE = $(DESTDIR)$(PREFIX)/share
CARGO ?= cargo
# All targets use this command: with examples, cargo would also build what only tests depend on, choose more
# features of dependencies, and optimize each example as a whole program. A library is what `sluice netmap` preloads.
RELEASE := $(CARGO) build --release --workspace --lib --bins
# Quoted where it is used, because the path may contain spaces.
TARGET := $(or $(CARGO_TARGET_DIR),target)
SLUICE := "$(TARGET)/release/sluice"
# The run that `make bench` compares, and the result that it compares with.
ROUNDS ?= 5
SHORT := bench all --peers --rounds $(ROUNDS) --seconds 300ms --rules 1,100 --no-causes --json
BASE ?= docs/bench.json
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$$PATH",)

.PHONY: all help setup demo demo-scrub test test-fast lint bench bench-record bench-run readme vm-test soak install clean

all:
	$(RELEASE)

help:
	@sed -n 's/^# make/make/p' Makefile

setup:
	./scripts/setup.sh

demo: setup
	$(RELEASE)
	$(SUDO) ./scripts/demo.sh

demo-scrub: setup
	$(RELEASE)
	$(SUDO) ./scripts/demo-scrub.sh

test: setup
	./scripts/test.sh

test-fast:
	./scripts/test.sh --fast

lint: setup
	./scripts/lint.sh

bench: bench-run
	$(SLUICE) bench check "$(TARGET)/bench.json" --compare "$(BASE)"

bench-record: bench-run
	@grep -q '"complete":true' "$(TARGET)/bench.json" || { echo "the run was stopped: $(BASE) is unchanged" >&2; exit 1; }
	cp "$(TARGET)/bench.json" "$(BASE)"
	$(MAKE) readme

bench-run: setup
	$(RELEASE)
	$(SUDO) $(SLUICE) $(SHORT) >"$(TARGET)/bench.json"

readme:
	$(RELEASE)
	$(SLUICE) bench show docs/bench.json --markdown README.md --svg docs/bench.svg
	$(SLUICE) bench show docs/bench.json --markdown docs/bench.md

vm-test: setup
	./scripts/vm-test.sh

soak: setup
	./scripts/soak.sh

install:
	@test -x $(SLUICE) || { echo "run make first, as yourself" >&2; exit 1; }
	install -D -m 0755 $(SLUICE) "$(DESTDIR)$(PREFIX)/bin/sluice"
	install -D -m 0644 "$(TARGET)/release/libsluice_netmap.so" "$(DESTDIR)$(PREFIX)/lib/sluice/libsluice_netmap.so"
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)} \
		$(SLUICE) manual "$(SHARE)/man" --docs docs
	install -d "$(SHARE)/bash-completion/completions" "$(SHARE)/zsh/site-functions" "$(SHARE)/fish/vendor_completions.d"
	COMPLETE=bash $(SLUICE) >"$(SHARE)/bash-completion/completions/sluice"
	COMPLETE=zsh $(SLUICE) >"$(SHARE)/zsh/site-functions/_sluice"
	COMPLETE=fish $(SLUICE) >"$(SHARE)/fish/vendor_completions.d/sluice.fish"
	install -d "$(DESTDIR)$(PREFIX)/lib/systemd/system"
	sed 's|/usr/local/|$(PREFIX)/|g' scrub/systemd/sluice-scrub@.service | \
		install -m 0644 /dev/stdin "$(DESTDIR)$(PREFIX)/lib/systemd/system/sluice-scrub@.service"
	install -d "$(SHARE)/doc/sluice"
	cp -R --parents README.md CHANGELOG.md CONTRIBUTING.md LICENSE-* docs core/examples "$(SHARE)/doc/sluice"

clean:
	$(CARGO) clean
