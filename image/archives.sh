#!/usr/bin/env bash
# Makes the files of a release from the artifacts of its workflow (binary-ARCH/tokometer, sbom/*.cdx.json): one reproducible
# archive for each architecture, the SBOMs, and SHA256SUMS.
#   image/archives.sh ARTIFACTS VERSION DIRECTORY
set -euo pipefail
artifacts=${1:?usage: image/archives.sh ARTIFACTS VERSION DIRECTORY} version=${2:?the version is missing} out=${3:?the directory is missing}
root=$(dirname "${BASH_SOURCE[0]}")/..
mkdir -p "$out"
for folder in "$artifacts"/binary-*; do
    arch=${folder##*/binary-}
    # Artifacts lose file modes.
    chmod 755 "$folder/tokometer"
    cp "$root/LICENSE" "$root/README.md" "$folder/"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git -C "$root" log -1 --format=%ct)" \
        -C "$folder" -cf - LICENSE README.md tokometer | gzip -n >"$out/tokometer-$version-linux-$arch.tar.gz"
done
for file in "$artifacts"/sbom/*.cdx.json; do
    name=$(basename "$file" .cdx.json)
    cp "$file" "$out/$name-$version.cdx.json"
done
cd "$out"
sha256sum -- *.tar.gz *.cdx.json >SHA256SUMS
