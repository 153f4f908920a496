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
    # Part of an image; its content names the image's archive.
    need /bin/busybox busybox-static
}

need_for_build() {
    need gcc gcc
    need pkg-config pkg-config
    need /usr/include/seccomp.h libseccomp-dev
    need /usr/include/stdio.h libc6-dev
    need /etc/ssl/certs/ca-certificates.crt ca-certificates
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

# The Go that compiles the components, where the installed one is older: a module
# like any other, of which Go's checksum database knows the same sums.
readonly GO_VERSION=1.26.8
readonly GO_SUM_amd64=h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=
readonly GO_SUM_arm64=h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=

# Sets GO to a Go that is new enough. Debian's may be too old to compile, but it
# can fetch a newer one.
need_go() {
    GO=$(command -v go) || GO=/usr/local/go/bin/go
    if [[ ! -x $GO ]]; then
        MISSING+=(golang-go)
        packages_install
        GO=$(command -v go)
    fi
    go_is_new_enough "$GO" || go_fetch
}

go_is_new_enough() {
    [[ $(GOTOOLCHAIN=local "$1" env GOVERSION) =~ ^go1\.([0-9]+) ]] || return 1
    ((BASH_REMATCH[1] >= $(cut -d. -f2 <<<"$GO_VERSION")))
}

go_fetch() {
    local architecture sum_name answer folder=$CACHE/go-$GO_VERSION new
    if [[ ! -x $folder/bin/go ]]; then
        architecture=$("$GO" env GOARCH)
        sum_name=GO_SUM_$architecture
        [[ -n ${!sum_name:-} ]] || die "Go $GO_VERSION or newer is needed, and none is known for $architecture"
        say "fetching Go $GO_VERSION"
        answer=$(cd / && "$GO" mod download -json "golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$architecture") ||
            die "Go $GO_VERSION could not be fetched: $answer"
        grep -qF "\"Sum\": \"${!sum_name}\"" <<<"$answer" || die "the fetched Go $GO_VERSION has another checksum than expected"
        new=$(mktemp -d "$CACHE/.new-go-XXXXXX")
        cp -r --no-preserve=mode "$(sed -n 's/.*"Dir": "\(.*\)",*/\1/p' <<<"$answer")/." "$new"
        # A module holds no permissions.
        chmod 755 "$new" "$new"/bin/* "$new"/pkg/tool/*/*
        rm -rf "$folder"
        mv -T "$new" "$folder"
    fi
    GO=$folder/bin/go
}
