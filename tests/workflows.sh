#!/usr/bin/env bash
# Checks the workflows: every action and image is pinned, and actionlint reports no finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly SKIPPED=77
fail() { printf 'workflows: %s\n' "$1" >&2; exit 1; }

# Prints the lines that match the first expression and not the second.
unpinned() { grep -nE "$1" "${@:3}" | grep -vE "$2" || true; }
found=$(
    unpinned '\buses:' 'uses: (\./|[A-Za-z0-9/_.-]+@[0-9a-f]{40} # v[0-9.]+$)' .github/workflows/*.yml
    unpinned '^ *(-? *container|image|.*driver-opts): .*[a-z]+:' '@sha256:[0-9a-f]{64}' .github/workflows/*.yml
    unpinned '^FROM ' '^[^:]*:[0-9]+:FROM (scratch|[^ ]+@sha256:[0-9a-f]{64})( |$)' Dockerfile image/Dockerfile.*
)
[ -z "$found" ] || fail "not pinned by commit or digest:
$found"

command -v actionlint >/dev/null || { echo "no actionlint (tests/components/fetch.sh actionlint)"; exit $SKIPPED; }
actionlint -color
echo "actionlint $(actionlint --version | head -n 1): no findings; all actions and images are pinned"
