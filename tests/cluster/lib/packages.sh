# The Debian packages that the cluster needs, installed only where one is missing.

MISSING=()

# need FILE_OR_COMMAND PACKAGE: looked at is what is used, not the package list,
# since it may come from elsewhere.
need() {
    if [[ $1 == /* ]]; then
        [[ -e $1 ]] || MISSING+=("$2")
    else
        command -v "$1" >/dev/null 2>&1 || MISSING+=("$2")
    fi
}

need_for_control_plane() {
    need curl curl
    need openssl openssl
    need flock util-linux
    need setsid util-linux
    need pgrep procps
}

need_for_node() {
    need ip iproute2
    need nsenter util-linux
    need iptables iptables
    need conntrack conntrack
    need mount mount
    need /usr/lib/cni/bridge containernetworking-plugins
}

need_for_build() {
    need gcc gcc
    need pkg-config pkg-config
    need /usr/include/seccomp.h libseccomp-dev
    need /usr/include/stdio.h libc6-dev
    need /etc/ssl/certs/ca-certificates.crt ca-certificates
    need /bin/busybox busybox-static
    need tar tar
}

packages_install() {
    ((${#MISSING[@]})) || return 0
    local log
    ((EUID == 0)) || die "these Debian packages are missing: ${MISSING[*]}; install them, or run this as root"
    command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get: ${MISSING[*]}"
    say "installing ${MISSING[*]}"
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${MISSING[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "apt-get failed; the whole output is in $log"
    fi
    rm -f "$log"
    MISSING=()
}

# Any Go from 1.21 on fetches the toolchain that a module's go.mod asks for.
need_go() {
    local version
    if ! command -v go >/dev/null 2>&1; then
        if [[ -x /usr/local/go/bin/go ]]; then
            PATH=$PATH:/usr/local/go/bin
        else
            MISSING+=(golang-go)
            packages_install
        fi
    fi
    version=$(go env GOVERSION)
    [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21)) ||
        die "Go $version is too old: 1.21 or newer is needed (https://go.dev/dl)"
}
