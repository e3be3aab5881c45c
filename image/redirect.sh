#!/usr/bin/env bash
# Gathers what the image of the mode `redirect` holds: nft, the libraries that it is linked with, and their loader.
#   image/redirect.sh DIRECTORY [NFT]
set -euo pipefail
out=${1:?usage: image/redirect.sh DIRECTORY [NFT]}
program=${2:-/usr/sbin/nft}
install -D -m 755 "$program" "$out/usr/sbin/nft"

linked=$(ldd "$program")
if grep "not found" <<<"$linked"; then exit 1; fi
# "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", and the loader by its path alone.
libraries=$(sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' <<<"$linked")
loader=$(sed -n 's/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) (.*/\1/p' <<<"$linked")
# Where that loader looks by itself, whatever place they come from.
place=$out/lib/$(basename "$(dirname "$(grep '/libc\.so' <<<"$libraries")")")
for library in $libraries; do
    install -D -m 644 "$library" "$place/$(basename "$library")"
done
install -D -m 755 "$loader" "$out$loader"
