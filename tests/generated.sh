#!/usr/bin/env bash
# The files that are generated from the code (config/, dashboards/, docs/): `check` compares them, `write` regenerates
# them. Both are done by the tests that check them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
check) ;;
write) export UPDATE=1 ;;
*)
    echo "usage: tests/generated.sh check|write" >&2
    exit 2
    ;;
esac

# docs/reference/configuration.md is made by a unit test, because the tables behind it are private.
cargo test --locked --features tokenizer --lib -- --exact config::tests::reference_is_up_to_date
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --locked --features tokenizer --test it -- inject::component:: inject::platforms:: config_documents:: chart:: rules::committed_rules dashboards::committed_dashboards export::docs:: truth::document:: truth::queue:: scrape::docs:: replay::request_record_page reference:: 2>&1 | tee "$log"
# A filter that matches no test passes, too.
for name in inject::component:: inject::platforms:: config_documents:: chart:: rules::committed_rules dashboards::committed_dashboards export::docs:: truth::document:: truth::queue:: scrape::docs:: replay::request_record_page reference::; do
    grep -q "^test .*$name" "$log" || { echo "test $name not found: update tests/generated.sh"; exit 1; }
done
