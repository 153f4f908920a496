# Paths, messages, waiting, locks, and processes that are known by their id and
# start time. Knows nothing about Kubernetes.

# Where compiled components are kept; shared by every clone of the repository.
CACHE="${AGENT_WORKSPACE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}}/agent-workspace-operator/cluster"
# Where the data of clusters lies. Short, since unix sockets below it may have
# at most 107 characters in their path.
if ((EUID == 0)); then
    STATE=/var/lib/agent-workspace-operator
else
    STATE="${XDG_STATE_HOME:-$HOME/.local/state}/agent-workspace-operator"
fi
readonly CACHE STATE

say() { printf '%s\n' "$*"; }
warn() { printf 'cluster: %s\n' "$*" >&2; }
die() { warn "$*"; exit 1; }

# Sets the paths of the cluster NAME. The name becomes part of a folder and a
# control group, so only a short DNS label is let through.
use_name() {
    [[ $1 =~ ^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$ ]] ||
        die "'$1' is not a cluster name: use up to 32 of a-z, 0-9 and '-'"
    NAME=$1
    DATA=$STATE/clusters/$NAME
    LOGS=$DATA/logs
    RECORDS=$DATA/processes
    PKI=$DATA/certificates
    KUBECONFIG_ADMIN=$DATA/kubeconfig
}

# wait_until SECONDS WHAT COMMAND...: polls, and explains when it takes longer.
wait_until() {
    local seconds=$1 what=$2 end
    shift 2
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { warn "$what: not after $seconds s (tried: $*)"; return 1; }
        components_alive || return 1
        sleep 0.05
    done
}

# The start time of a process in clock ticks since boot (proc(5), field 22), or
# nothing when there is no such process. With the id it names a process for good.
process_start_time() {
    local text
    { text=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    text=${text##*) }
    # shellcheck disable=SC2086
    set -- $text
    # After the command's name come fields 3 (state) to 52: field 22 is the 20th.
    [[ $1 == Z ]] || printf '%s' "${20}"
}

# process_is_ours RECORD: a recorded process still runs and is the same one.
process_is_ours() {
    local pid started
    read -r pid started 2>/dev/null <"$1" || return 1
    [[ $pid =~ ^[0-9]+$ && -n $started && $(process_start_time "$pid") == "$started" ]]
}

# Ends a recorded process at once: a cluster's data goes with it, so there is
# nothing to write down first.
process_end() {
    local record=$1 pid _ end=$((SECONDS + 10))
    if process_is_ours "$record"; then
        read -r pid _ <"$record"
        kill -KILL "$pid" 2>/dev/null || true
        while process_is_ours "$record"; do
            ((SECONDS < end)) || { warn "$(basename "$record") (process $pid) does not end"; return 1; }
            sleep 0.02
        done
    fi
    rm -f "$record"
}

# process_start COMPONENT COMMAND...: starts a component in the background with a
# log and a record of its own. It outlives this script and holds no lock of it.
process_start() {
    local component=$1
    shift
    mkdir -p "$LOGS" "$RECORDS"
    setsid bash "$HERE/lib/run-recorded.sh" "$RECORDS/$component" "$@" \
        >>"$LOGS/$component.log" 2>&1 </dev/null 9>&- 8>&- &
    disown
    # Only a recorded process can be found again, so nothing goes on before.
    local waited=0
    until [[ -e $RECORDS/$component ]]; do
        ((waited++ < 1000)) || { warn "$component did not start; see $LOGS/$component.log"; return 1; }
        sleep 0.01
    done
    STARTED+=("$component")
}
STARTED=()

# A component that ended is reported at once, with the end of its log.
components_alive() {
    local component
    for component in "${STARTED[@]}"; do
        process_is_ours "$RECORDS/$component" && continue
        warn "$component ended; the end of $LOGS/$component.log:"
        tail -n 15 "$LOGS/$component.log" >&2
        return 1
    done
}

# Waits up to 5 minutes for the lock of this cluster, on descriptor 9.
lock_cluster() {
    mkdir -p "$STATE/locks"
    exec 9>"$STATE/locks/$NAME.lock"
    flock -n 9 && return
    warn "another command works on the cluster $NAME; waiting for it"
    flock -w 300 9 || die "the cluster $NAME stayed locked for 5 minutes"
}

# In a changed root (chroot) containers would run, but whoever enters one, as `kubectl exec` does, would land in the root of the
# machine: a mount namespace is entered at its own root.
need_own_root() {
    [[ $(stat -c %d:%i /) == "$(nsenter --mount=/proc/self/ns/mnt -- stat -c %d:%i /)" ]] ||
        die "this is a changed root (chroot), where containers are not safe to enter; use a container, a virtual machine or pivot_root"
}

need_root() {
    ((EUID == 0)) || die "a node needs root (mounts, network namespaces); without root only: start --control-plane-only"
}
