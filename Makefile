# Every task of the project. `make help` lists them; continuous integration calls the same ones.

.DEFAULT_GOAL := help
TIME ?=

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Format, lints, build, unit and integration tests, attacks, the quick tests against real components (10 min)
	@tests/stages.sh fast

.PHONY: test-all
test-all: test test-slow ## `make test` and `make test-slow`: what continuous integration runs

.PHONY: test-slow
test-slow: ## Documentation, short fuzzing, the slow tests against real components, attacks in a memory cgroup
	@tests/stages.sh slow

.PHONY: check
check: ## The quick part of `make test`: format, lints, unit and integration tests
	tests/stages.sh format lint unit integration

.PHONY: fmt
fmt: ## Format the source
	cargo fmt

.PHONY: fmt-check
fmt-check:
	cargo fmt --check

.PHONY: lint
lint: ## Clippy on everything, warnings are errors
	tests/stages.sh lint

.PHONY: docs
docs: ## Regenerate the generated files (config/, docs/reference/, ...), and build the book (target/book) and the API documentation
	tests/generated.sh write
	tests/stages.sh book
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

.PHONY: chart-examples
chart-examples: ## Regenerate charts/tokometer/examples: the rendered output of each file of its ci/
	tests/components/fetch.sh python
	UPDATE=1 tests/stages.sh build live-chart

.PHONY: tables
tables: ## What the tests found, recording by recording: tokens counted and true, outcomes, engines, queue times, objectives
	tests/stages.sh tables

.PHONY: components
components: ## Get the real components of the live tests (llama-server, the official clients, Prometheus, Alertmanager, h2load)
	tests/components/fetch.sh

.PHONY: live
live: ## Only the tests against real components
	tests/stages.sh live

.PHONY: live-ollama
live-ollama: ## A real Ollama with its own client (builds it with Go the first time: minutes)
	tests/components/fetch.sh python ollama
	tests/stages.sh live-ollama

.PHONY: picture-trace
picture-trace: ## Redraw docs/images/trace.png: a slow request in a trace UI (gets Arize Phoenix the first time; needs chromium)
	tests/components/fetch.sh python llama-server phoenix
	tests/stages.sh picture-trace

.PHONY: check-boards
check-boards: ## The dashboards' JSON against Grafana's own types (needs node and npm)
	tests/components/fetch.sh boards
	tests/stages.sh check-boards

.PHONY: picture-boards
picture-boards: ## Redraw docs/images/boards: every dashboard on 10 minutes of traffic (needs npm, chromium; BOARDS_AGAIN=1: on the last run)
	tests/components/fetch.sh python prometheus llama-server boards
	tests/stages.sh picture-boards

.PHONY: live-page
live-page: ## The live page in a browser, with 50 and 2,000 streams; redraws docs/images/live-*.png (needs chromium)
	tests/components/fetch.sh python
	tests/stages.sh live-page

.PHONY: live-top
live-top: ## `tokometer top` in a terminal; redraws docs/images/top.svg and docs/demo.svg (needs tmux)
	tests/components/fetch.sh python
	tests/stages.sh live-top

.PHONY: live-netns
live-netns: ## The modes of `inject` in network namespaces (needs root)
	tests/components/fetch.sh python llama-server nft
	tests/stages.sh live-netns

.PHONY: live-tap
live-tap: ## `tokometer tap` on a network that loses and swaps packets, and in a terminal (needs root and tmux)
	tests/components/fetch.sh python
	tests/stages.sh live-tap

.PHONY: live-kustomize
live-kustomize: ## The Kustomize component makes the pods that `inject` makes (needs kubectl)
	tests/components/fetch.sh python
	tests/stages.sh live-kustomize

.PHONY: test-cluster
test-cluster: ## The chart and the image on a real node of Kubernetes (TESTS=NAME for one test; needs root, and Go, which builds Kubernetes the first time: ten minutes)
	tests/components/fetch.sh python llama-server prometheus promtool-3 alertmanager crds cluster
	CLUSTER_TESTS="$(TESTS)" tests/stages.sh test-cluster

.PHONY: chaos
chaos: ## Random failures on the node for TIME seconds, with tokometer and without it: which requests are lost (TIME=1200; needs what test-cluster needs)
	tests/components/fetch.sh python llama-server crds cluster
	CHAOS_SECONDS=$(or $(TIME),1200) CLUSTER_TESTS=requests_lost_under_chaos_are_those_through_killed_sidecars tests/stages.sh test-cluster

.PHONY: image
image: ## Build the static binary and both images, and run them (needs root)
	tests/components/fetch.sh python buildah nft
	tests/stages.sh image

.PHONY: live-vllm
live-vllm: ## A real vLLM 0.32 and 0.33 on the CPU, with both front ends (gets 6 GB the first time)
	tests/components/fetch.sh python vllm vllm-next aiperf
	tests/stages.sh live-vllm

.PHONY: hostile
hostile: ## Attacks on the program: work, memory, pauses and counts are asserted (needs root for the memory cgroup)
	tests/stages.sh hostile-release hostile-rewrite hostile-cgroup

.PHONY: hostile-table
hostile-table: ## What the attacks cost, for docs/reference/performance.md; asserts nothing
	cargo build --locked --profile dist --bin tokometer
	TOKOMETER_BIN=$${CARGO_TARGET_DIR:-target}/dist/tokometer cargo test --locked --test hostile -- --table

.PHONY: bench
bench: ## What it costs: the parts (criterion), then the relay against its peers (ROWS=s1,rss for some rows only)
	cargo bench --locked --bench decode --bench observer
	cargo bench --locked -p tokometer-tap
	command -v nginx >/dev/null || echo "SKIP nginx: not installed"
	command -v haproxy >/dev/null || echo "SKIP haproxy: not installed"
	tests/components/fetch.sh envoy
	cargo build --locked --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir target/peers
	cargo bench --locked --bench relay -- $(if $(ROWS),--rows $(ROWS))
	$(MAKE) hostile-table

.PHONY: fuzz
fuzz: ## Every fuzz target for TIME seconds (make fuzz TIME=300)
	tests/fuzz.sh $(or $(TIME),60)

.PHONY: explore
explore: ## The tests that draw their cases, with new seeds for TIME seconds (make explore TIME=300)
	tests/explore.sh $(or $(TIME),60)

.PHONY: soak
soak: ## Traffic for TIME seconds: memory and file descriptors must stay flat (make soak TIME=600)
	SOAK_SECONDS=$(or $(TIME),600) tests/stages.sh soak

.PHONY: reliability
reliability: ## What goes wrong, at the length it has in life: TIME seconds without a server and with a slow client (TIME=180)
	RELIABILITY_SECONDS=$(or $(TIME),180) tests/stages.sh reliability

.PHONY: deny
deny: ## Licences, advisories and sources of the dependencies (needs cargo-deny)
	cargo deny --locked check
