#!/usr/bin/env bash
# Builds the static binary of the images and of the releases: `image/static.sh DIRECTORY`, with Rust and gcc alone.
set -euo pipefail
out=$(mkdir -p "${1:?usage: image/static.sh DIRECTORY}" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With --target, cargo does not apply the flags to build scripts and procedural macros, which cannot be static.
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_ENCODED_RUSTFLAGS='-Ctarget-feature=+crt-static'
profile=${STATIC_PROFILE:-dist}
cargo build --locked --features tokenizer --bin tokometer --target "$target" --profile "$profile"
[ "$profile" != dev ] || profile=debug
# Not CARGO_PROFILE_DIST_STRIP: cargo 1.95 ignores it for a package with settings of its own in the profile.
install -m 755 --strip "${CARGO_TARGET_DIR:-target}/$target/$profile/tokometer" "$out/tokometer"
