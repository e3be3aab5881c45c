# Every task of the project. `make help` lists them; continuous integration calls the same ones.

.DEFAULT_GOAL := help
TIME ?=

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Everything: format, lints, build, tests, generated files, short fuzzing, real components (< 30 min)
	@tests/stages.sh

.PHONY: check
check: fmt-check lint ## The quick part of `make test`: format, lints, unit and integration tests
	cargo test --locked --lib --test it

.PHONY: fmt
fmt: ## Format the source
	cargo fmt

.PHONY: fmt-check
fmt-check:
	cargo fmt --check

.PHONY: lint
lint: ## Clippy on everything, warnings are errors
	cargo clippy --locked --all-targets -- -D warnings

.PHONY: docs
docs: ## Write the generated files anew (config/, docs/METRICS.md, ...) and the API documentation
	tests/generated.sh write
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

.PHONY: components
components: ## Get the real components of the live tests (llama-server, the official clients, Prometheus, h2load)
	tests/components/fetch.sh

.PHONY: live
live: ## Only the tests against real components
	tests/stages.sh live

.PHONY: live-ollama
live-ollama: ## A real Ollama with its own client (builds it with Go the first time: minutes)
	tests/components/fetch.sh python ollama
	tests/stages.sh live-ollama

.PHONY: bench
bench: ## What it costs: the parts (criterion), then the relay against its peers (ROWS=s1,rss for some rows only)
	cargo bench --locked --bench decode --bench observer
	command -v nginx >/dev/null || echo "SKIP nginx: not installed"
	command -v haproxy >/dev/null || echo "SKIP haproxy: not installed"
	cargo build --locked --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir target/peers
	cargo bench --locked --bench relay -- $(if $(ROWS),--rows $(ROWS))

.PHONY: fuzz
fuzz: ## Every fuzz target for TIME seconds (make fuzz TIME=300)
	tests/fuzz.sh $(or $(TIME),60)

.PHONY: soak
soak: ## Traffic for TIME seconds: memory and file descriptors must stay flat (make soak TIME=600)
	SOAK_SECONDS=$(or $(TIME),600) tests/stages.sh soak

.PHONY: reliability
reliability: ## What goes wrong, at the length it has in life: TIME seconds without a server and with a slow client (TIME=180)
	RELIABILITY_SECONDS=$(or $(TIME),180) tests/stages.sh reliability

.PHONY: deny
deny: ## Licences, advisories and sources of the dependencies (needs cargo-deny)
	cargo deny --locked check
