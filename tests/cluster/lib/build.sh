# Compiles the components, one Go module each, into a cache that several clones
# of the repository may use at once. Knows nothing about running clusters.

COMPONENTS=(kubernetes etcd containerd runc network-policies helm coredns provisioner)
readonly COMPONENTS

# Sets what `go build` needs for a component: the folder of its module, whether
# it uses C, build tags, linker flags, and pairs PROGRAM=PACKAGE.
component_recipe() {
    MODULE=$HERE/modules/$1 CGO=0 TAGS='' LINK='-s -w'
    case $1 in
        kubernetes)
            local version package
            version=$(module_version k8s.io/kubernetes)
            # The second is what clients call themselves in the audit log.
            for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
                LINK+=" -X $package.gitVersion=$version -X $package.gitMajor=1"
                LINK+=" -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
                LINK+=" -X $package.gitCommit=unknown -X $package.gitTreeState=clean"
            done
            PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
            PROGRAMS=("${PROGRAMS[@]/%/=}")
            PROGRAMS=("${PROGRAMS[@]/=/=k8s.io/kubernetes/cmd/}")
            local i
            for i in "${!PROGRAMS[@]}"; do PROGRAMS[i]+=${PROGRAMS[i]%%=*}; done
            ;;
        etcd) PROGRAMS=(etcd=go.etcd.io/etcd/server/v3) ;;
        containerd)
            TAGS=no_btrfs,no_devmapper,no_zfs
            local path=github.com/containerd/containerd/v2/cmd
            PROGRAMS=("containerd=$path/containerd" "ctr=$path/ctr"
                "containerd-shim-runc-v2=$path/containerd-shim-runc-v2")
            ;;
        # The seccomp filter is a C library; everything else is pure Go.
        runc) CGO=1 TAGS=seccomp PROGRAMS=(runc=github.com/opencontainers/runc) ;;
        network-policies) PROGRAMS=(kube-network-policies=sigs.k8s.io/kube-network-policies/cmd) ;;
        helm) PROGRAMS=(helm=helm.sh/helm/v3/cmd/helm)
            LINK+=" -X helm.sh/helm/v3/internal/version.version=$(module_version helm.sh/helm/v3)" ;;
        coredns) PROGRAMS=(coredns=.) ;;
        provisioner) MODULE=$HERE/provisioner PROGRAMS=(provisioner=.) ;;
        *) die "there is no component $1" ;;
    esac
}

# The version of a module that go.mod of the current recipe requires.
module_version() {
    awk -v path="$1" '$1 == "require" && $2 == path { print $3; exit } $1 == path { print $2; exit }' "$MODULE/go.mod"
}

# The folder of a component's programs: named by a hash over all that decides
# their content.
component_folder() {
    local hash
    component_recipe "$1"
    hash=$({ find "$MODULE" -maxdepth 1 \( -name '*.go' -o -name go.mod -o -name go.sum \) -print0 |
            LC_ALL=C sort -z | xargs -0 cat
        echo "$CGO $TAGS $LINK ${PROGRAMS[*]}"; } | sha256sum)
    printf '%s/components/%s-%s' "$CACHE" "$1" "${hash:0:16}"
}

# Sets FOLDERS[component]; costs a few milliseconds each, so it is done once.
declare -A FOLDERS=()
component_folders() {
    local component
    ((${#FOLDERS[@]})) && return
    for component in "${COMPONENTS[@]}"; do
        FOLDERS[$component]=$(component_folder "$component")
    done
}

build_all() {
    local component number=0 failed=no
    local -a missing=()
    component_folders
    need_for_control_plane
    ((EUID != 0)) || need_for_node
    for component in "${COMPONENTS[@]}"; do
        [[ -e ${FOLDERS[$component]}/complete ]] || missing+=("$component")
    done
    ((${#missing[@]} == 0)) || need_for_build
    packages_install
    if ((${#missing[@]})); then
        mkdir -p "$CACHE"
        # One build at a time: two would only take the same processors and
        # compile the same packages. The other one then finds everything done.
        exec 8>"$CACHE/build.lock"
        flock -n 8 || { say "waiting for another build"; flock 8; }
        need_go
        for component in "${missing[@]}"; do
            number=$((number + 1))
            build_component "$component" "$number/${#missing[@]}" || { failed=yes; break; }
        done
        [[ $failed == no ]] || exit 1
        # Go's own cache grows to several GB and serves only the next change of
        # a version. It is kept when a build fails, so that the next one goes on.
        chmod -R u+w "$CACHE/build" 2>/dev/null || true
        rm -rf "$CACHE/build"
        prune_components
        exec 8>&-
    fi
    # Without root there is no node that could use them.
    ((EUID != 0)) || images_build
}

build_component() {
    local component=$1 position=$2 folder=${FOLDERS[$1]} started=$SECONDS new log
    [[ ! -e $folder/complete ]] || return 0
    component_recipe "$component"
    mkdir -p "$CACHE/components" "$CACHE/build/tmp" "$CACHE/logs"
    new=$(mktemp -d "$CACHE/components/.new-XXXXXX")
    log=$CACHE/logs/build-$component.log
    printf 'building %s (%s) ... ' "$component" "$position"
    # All programs of a module in one command, so that both processors stay busy.
    # Go names several after their packages, a single one as told.
    local -a packages=("${PROGRAMS[@]#*=}")
    local output=$new/
    ((${#PROGRAMS[@]} > 1)) || output=$new/${PROGRAMS[0]%%=*}
    if ! (cd "$MODULE" && env -u GOROOT GOCACHE="$CACHE/build/go" GOTMPDIR="$CACHE/build/tmp" \
        GOFLAGS='-mod=readonly -buildvcs=false' GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=$CGO \
        "$GO" build -trimpath -tags "$TAGS" -ldflags "$LINK" \
        -o "$output" "${packages[@]}") >"$log" 2>&1 8>&-; then
        say failed
        tail -n 20 "$log" >&2
        warn "building $component failed; the whole output is in $log"
        rm -rf "$new"
        return 1
    fi
    touch "$new/complete"
    chmod 755 "$new"
    rm -rf "$folder"
    mv -T "$new" "$folder"
    say "done in $((SECONDS - started)) s"
}

# Other versions of a component stay for the clones that use them; one that no
# start has touched for 30 days goes.
prune_components() {
    local marker
    find "$CACHE/components" -maxdepth 1 -name '.new-*' -mmin +120 -exec rm -rf {} + 2>/dev/null || true
    find "$CACHE/components" -mindepth 2 -maxdepth 2 -name complete -mtime +30 2>/dev/null |
        while read -r marker; do rm -rf "$(dirname "$marker")"; done
}

# Prints the path of a program; fails when it is not built.
program_path() {
    local component file
    component_folders
    for component in "${COMPONENTS[@]}"; do
        file=${FOLDERS[$component]}/$1
        if [[ -x $file && $1 != complete ]]; then
            printf '%s\n' "$file"
            return
        fi
    done
    die "there is no program $1 (or it is not built yet: run 'cluster build')"
}

# Sets PROGRAM[name] for every built program, and marks them as used.
declare -A PROGRAM=()
load_programs() {
    local component file
    component_folders
    for component in "${COMPONENTS[@]}"; do
        touch -c "${FOLDERS[$component]}/complete"
        for file in "${FOLDERS[$component]}"/*; do
            PROGRAM[${file##*/}]=$file
        done
    done
}
