# All tasks of the project. `make help` lists them; continuous integration runs the same targets.

.DEFAULT_GOAL := help
TIME ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Check format and lints, build, and run unit and integration tests, attacks, and quick tests against real components (10 min)
	@tests/stages.sh fast

.PHONY: test-all
test-all: test test-slow ## Run `make test` and `make test-slow`, as continuous integration does

.PHONY: test-slow
test-slow: ## Build the documentation, and run short fuzzing, slow tests against real components, and attacks on release builds
	@tests/stages.sh slow

.PHONY: check
check: ## Run the quick part of `make test`: format, lints, unit and integration tests
	tests/stages.sh format lint unit integration

.PHONY: fmt
fmt: ## Format the source
	cargo fmt

.PHONY: fmt-check
fmt-check:
	cargo fmt --check

.PHONY: lint
lint: ## Run Clippy on all code; warnings are errors
	tests/stages.sh lint

.PHONY: docs
docs: ## Regenerate the generated files (config/, docs/reference/, ...); build the book (target/book) and the API documentation
	tests/generated.sh write
	tests/stages.sh book
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

.PHONY: chart-examples
chart-examples: ## Regenerate charts/tokometer/examples: the rendered output of each file in charts/tokometer/ci
	tests/components/fetch.sh python
	UPDATE=1 tests/stages.sh build live-chart

.PHONY: tables
tables: ## Print the test results per recording: counted and true tokens, outcomes, engines, queue times, objectives
	tests/stages.sh tables

.PHONY: components
components: ## Fetch the real components for the live tests (llama-server, the official clients, Prometheus, Alertmanager, h2load)
	tests/components/fetch.sh

.PHONY: live
live: ## Run only the tests against real components
	tests/stages.sh live

.PHONY: live-ollama
live-ollama: ## Test with a real Ollama and its own client (the first run builds Ollama with Go: minutes)
	tests/components/fetch.sh python ollama
	tests/stages.sh live-ollama

.PHONY: picture-trace
picture-trace: ## Redraw docs/images/trace.png: a slow request in a trace UI (the first run fetches Arize Phoenix; needs chromium)
	tests/components/fetch.sh python llama-server phoenix
	tests/stages.sh picture-trace

.PHONY: check-dashboards
check-dashboards: ## Check the dashboards' JSON against Grafana's own types (needs node and npm)
	tests/components/fetch.sh dashboards
	tests/stages.sh check-dashboards

.PHONY: picture-dashboards
picture-dashboards: ## Redraw docs/images/dashboards: every dashboard with 10 minutes of traffic (needs npm and chromium; DASHBOARDS_AGAIN=1 reuses the last run)
	tests/components/fetch.sh python prometheus llama-server dashboards
	tests/stages.sh picture-dashboards

.PHONY: live-page
live-page: ## Test the live page in a browser with 50 and 2,000 streams, and redraw docs/images/live-*.png (needs chromium)
	tests/components/fetch.sh python
	tests/stages.sh live-page

.PHONY: live-top
live-top: ## Test `tokometer top` in a terminal, and redraw docs/images/top.svg and docs/demo.svg (needs tmux)
	tests/components/fetch.sh python
	tests/stages.sh live-top

.PHONY: live-netns
live-netns: ## Test the modes of `inject` in network namespaces (needs root)
	tests/components/fetch.sh python llama-server nft
	tests/stages.sh live-netns

.PHONY: live-tap
live-tap: ## Test `tokometer tap` on a network that loses and reorders packets, and in a terminal (needs root and tmux)
	tests/components/fetch.sh python
	tests/stages.sh live-tap

.PHONY: live-kustomize
live-kustomize: ## Check that the Kustomize component produces the same pods as `inject` (needs kubectl)
	tests/components/fetch.sh python
	tests/stages.sh live-kustomize

.PHONY: test-cluster
test-cluster: ## Test the chart and the image on a real Kubernetes node (TESTS=NAME for one test; needs root and Go; the first run builds Kubernetes: 10 min)
	tests/components/fetch.sh python llama-server prometheus promtool-3 alertmanager crds cluster
	CLUSTER_TESTS="$(TESTS)" tests/stages.sh test-cluster

.PHONY: chaos
chaos: ## Report which requests are lost in TIME seconds of random failures on the node, with and without tokometer (TIME=1200; needs: see test-cluster)
	tests/components/fetch.sh python llama-server crds cluster
	CHAOS_SECONDS=$(or $(TIME),1200) CLUSTER_TESTS=chaos_loses_only_requests_through_killed_sidecars tests/stages.sh test-cluster

.PHONY: image
image: ## Build the static binary and both images, and run the images (needs root)
	tests/components/fetch.sh python buildah nft
	tests/stages.sh image

.PHONY: live-vllm
live-vllm: ## Test with real vLLM 0.32 and 0.33 on the CPU, with both front ends (the first run fetches 6 GB)
	tests/components/fetch.sh python vllm vllm-next aiperf
	tests/stages.sh live-vllm

.PHONY: hostile
hostile: ## Attack the program; asserts limits on work, memory, pauses and counts (needs root for the memory cgroup)
	tests/stages.sh hostile-release hostile-rewrite hostile-cgroup

.PHONY: hostile-table
hostile-table: ## Measure the cost of the attacks for docs/reference/performance.md, without assertions
	cargo build --locked --profile dist --bin tokometer
	TOKOMETER_BIN=$${CARGO_TARGET_DIR:-target}/dist/tokometer cargo test --locked --test hostile -- --table

.PHONY: bench
bench: ## Measure the cost of the parts (criterion), of the relay against its peers (ROWS=s1,rss for some rows only), and of attacks
	cargo bench --locked --bench decode --bench observer
	cargo bench --locked -p tokometer-tap
	command -v nginx >/dev/null || echo "SKIP nginx: not installed"
	command -v haproxy >/dev/null || echo "SKIP haproxy: not installed"
	tests/components/fetch.sh envoy
	cargo build --locked --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir target/peers
	cargo build --locked --profile dist --bin tokometer
	TOKOMETER_BIN=$(CURDIR)/target/dist/tokometer cargo bench --locked --bench relay -- $(if $(ROWS),--rows $(ROWS))
	$(MAKE) hostile-table

.PHONY: fuzz
fuzz: ## Run every fuzz target for TIME seconds (make fuzz TIME=300)
	tests/fuzz.sh $(or $(TIME),60)

.PHONY: explore
explore: ## Run the tests with random cases for TIME seconds with new seeds (make explore TIME=300)
	tests/explore.sh $(or $(TIME),60)

.PHONY: soak
soak: ## Send traffic for TIME seconds; memory and file descriptors must stay flat (make soak TIME=600)
	SOAK_SECONDS=$(or $(TIME),600) tests/stages.sh soak

.PHONY: reliability
reliability: ## Test with TIME seconds without a server, and with a slow client (TIME=180)
	RELIABILITY_SECONDS=$(or $(TIME),180) tests/stages.sh reliability

.PHONY: deny
deny: ## Check licences, advisories and sources of the dependencies (needs cargo-deny)
	cargo deny --locked check
