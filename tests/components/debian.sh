# Sourced by fetch.sh: programs from Debian packages, unpacked into $debian (from the testing suite) and $release (from
# the machine's own release). Neither the machine's package lists nor its packages are changed.
# shellcheck shell=bash disable=SC2154 # $debian and $release are fetch.sh's

# Prints the mirror of the machine's own release; fails if the machine is not Debian.
debian_mirror() {
    local codename
    codename=$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || return 1
    [ -n "$codename" ] || return 1
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb  *\(\[[^]]*\] *\)\{0,1\}//p' |
        awk -v codename="$codename" '$2 == codename && !found { print $1; found = 1 }' | grep . && return 0
    awk -v codename="$codename" '
        FNR == 1 || /^$/ { uri = ""; suites = "" }
        /^URIs:/ { uri = $2 }
        /^Suites:/ { suites = $0 }
        uri && suites ~ "[ \t]" codename "([ \t]|$)" && !found { print uri; found = 1 }
    ' /etc/apt/sources.list.d/*.sources 2>/dev/null | grep .
}

# Unpacks packages of a suite into DIRECTORY/files, with all dependencies that are not in the given dpkg state file.
packages() {
    local directory=$1
    apt_root "${@:1:4}" || return 1
    shift 4
    local -x APT_CONFIG=$directory/apt.conf
    apt-get -q -y --download-only install "$@" || return 1
    local package
    for package in "$directory"/cache/archives/*.deb; do
        dpkg -x "$package" "$directory/files" || return 1
    done
    rm -f "$directory"/cache/archives/*.deb
}

# Creates an apt root in DIRECTORY, with the lists of a suite.
apt_root() {
    local directory=$1 suite=$2 status=$3 mirror=$4
    mkdir -p "$directory"/{root,state/lists/partial,cache/archives/partial}
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$suite" >"$directory/sources.list"
    cat >"$directory/apt.conf" <<CONF
Dir::Etc::sourcelist "$directory/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$directory/state";
Dir::State::status "$status";
Dir::Cache "$directory/cache";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
    local -x APT_CONFIG=$directory/apt.conf
    apt-get -q update
}

# Packages from Debian's testing suite, including its C library, for programs that the machine's release does not
# contain, or contains only in a version that is too old.
debian_packages() {
    mkdir -p "$debian/state"
    : >"$debian/state/status"
    packages "$debian" forky "$debian/state/status" "$@"
}

# Packages from the machine's own release, without dependencies that are already installed. Their programs run with the
# machine's loader, and find the other libraries with release_libraries.
release_packages() {
    packages "$release" "$(. /etc/os-release && echo "$VERSION_CODENAME")" /var/lib/dpkg/status "$@"
}

# Installs one FILE of one PACKAGE of the machine's own release: `release_package MIRROR PACKAGE FILE AS`. Does not use
# the machine's own package lists, which may be old or empty.
release_package() {
    apt_root "$release" "$(. /etc/os-release && echo "$VERSION_CODENAME")" /var/lib/dpkg/status "$1" || return 1
    local work
    work=$(mktemp -d)
    (
        export APT_CONFIG=$release/apt.conf
        cd "$work" && apt-get -q download "$2" && dpkg -x "$2"_*.deb files && install -m 755 "files/$3" "$4.new" && mv "$4.new" "$4"
    )
    local code=$?
    rm -rf "$work"
    return $code
}

# Directories of the libraries of release_packages.
release_libraries() {
    find "$release/files" -maxdepth 3 -type d -name '*-linux-gnu*' -path '*/lib/*' -printf '%p:' 2>/dev/null | sed 's/:$//'
}
