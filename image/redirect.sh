#!/usr/bin/env bash
# Collects the files of the image for the mode `redirect`: nft, its shared libraries, and the dynamic loader.
#   image/redirect.sh DIRECTORY [NFT]
set -euo pipefail
out=${1:?usage: image/redirect.sh DIRECTORY [NFT]}
program=${2:-/usr/sbin/nft}
install -D -m 755 "$program" "$out/usr/sbin/nft"

linked=$(ldd "$program")
if grep "not found" <<<"$linked"; then exit 1; fi
# ldd prints libraries as "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", and the loader as a path only.
libraries=$(sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' <<<"$linked")
loader=$(sed -n 's/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) (.*/\1/p' <<<"$linked")
# A default search directory of the loader. All libraries are copied there, regardless of their source directory.
place=$out/lib/$(basename "$(dirname "$(grep '/libc\.so' <<<"$libraries")")")
for library in $libraries; do
    install -D -m 644 "$library" "$place/$(basename "$library")"
done
install -D -m 755 "$loader" "$out$loader"
