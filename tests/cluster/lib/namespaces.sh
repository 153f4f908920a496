# The node's own mount, network and process namespaces, and its control group.
# Everything of a node runs inside, so that the end of one process ends it all.

NODE=node1

# Creates the namespaces; they live as long as the process `namespaces`.
namespaces_create() {
    CGROUP_PROCS=$(cgroup_create)
    export CGROUP_PROCS
    process_start namespaces unshare --mount --net --pid --fork --mount-proc --kill-child \
        bash "$HERE/lib/first-process.sh" "$DATA" "$CACHE" "$HERE"
    wait_until 10 "the node's namespaces" namespaces_ready
    local outer _
    read -r outer _ <"$RECORDS/namespaces"
    FIRST_PROCESS=$(pgrep -P "$outer")
    printf '%s %s\n' "$FIRST_PROCESS" "$(process_start_time "$FIRST_PROCESS")" >"$DATA/first-process"
}

namespaces_ready() {
    [[ -e $DATA/run/namespaces-ready ]]
}

# enter COMMAND...: runs a command inside. Not `ip netns exec`, which hides the
# control groups' mounts.
enter() {
    local pid _
    read -r pid _ <"$DATA/first-process"
    nsenter --target "$pid" --mount --net --pid -- "$@"
}

# node_start COMPONENT COMMAND...: as process_start, inside the namespaces.
node_start() {
    local component=$1
    shift
    process_start "$component" nsenter --target "$FIRST_PROCESS" --mount --net --pid -- "$@"
}

cluster_enter() {
    (($#)) || set -- bash
    cluster_is_running || die "the cluster $NAME is not running"
    [[ -e $DATA/first-process ]] || die "the cluster $NAME has no node"
    load_programs
    local folder
    for folder in "${FOLDERS[@]}"; do PATH=$PATH:$folder; done
    export KUBECONFIG=$KUBECONFIG_ADMIN CONTAINERD_ADDRESS=$DATA/run/containerd.sock CONTAINERD_NAMESPACE=k8s.io
    enter "$@"
}

# Ends every process of the node: the kernel ends a process namespace with its
# first process, and the process outside is gone when all inside are.
namespaces_end() {
    local pid _ end=$((SECONDS + 30))
    if process_is_ours "$DATA/first-process"; then
        read -r pid _ <"$DATA/first-process"
        kill -KILL "$pid" 2>/dev/null || true
    elif process_is_ours "$RECORDS/namespaces"; then
        read -r pid _ <"$RECORDS/namespaces"
        kill -KILL "$pid" 2>/dev/null || true
    fi
    while process_is_ours "$RECORDS/namespaces" || process_is_ours "$DATA/first-process"; do
        ((SECONDS < end)) || { warn "processes of the node did not end within 30 s"; return 1; }
        sleep 0.02
    done
    rm -f "$RECORDS/namespaces" "$DATA/first-process"
}

# The mounted hierarchies of control groups: one with version 2, one for each
# controller with version 1.
cgroup_hierarchies() {
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        echo /sys/fs/cgroup
    else
        # With version 1 a second one, without controllers, is often beside.
        awk '$3 ~ /^cgroup2?$/ && index($2, "/sys/fs/cgroup/") == 1 { print $2 }' /proc/self/mounts
    fi
}

# Makes the control group that the kubelet works below, and a child of it for the
# node's own processes. Prints the files by which a process joins that child.
cgroup_create() {
    local hierarchy group file
    touch "$DATA/cgroup-made"
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        group=/sys/fs/cgroup/$CGROUP
        cp /sys/fs/cgroup/cgroup.subtree_control "$DATA/cgroup-subtree-control"
        mkdir -p "$group"
        cgroup_delegate /sys/fs/cgroup
        cgroup_delegate "$group"
        mkdir -p "$group/system"
        echo "$group/system/cgroup.procs"
        return
    fi
    for hierarchy in $(cgroup_hierarchies); do
        for group in "$hierarchy/$CGROUP" "$hierarchy/$CGROUP/system"; do
            mkdir -p "$group"
            # A new cpuset group is empty and takes no process until it is filled.
            for file in cpuset.cpus cpuset.mems; do
                [[ ! -e $group/$file ]] || cat "$(dirname "$group")/$file" >"$group/$file"
            done
        done
        echo "$hierarchy/$CGROUP/system/cgroup.procs"
    done
}

# Version 2: gives the controllers of a group to its children.
cgroup_delegate() {
    local controller
    for controller in cpu cpuset io memory pids hugetlb; do
        grep -qw "$controller" "$1/cgroup.controllers" || continue
        echo "+$controller" >"$1/cgroup.subtree_control" ||
            die "cannot hand the controller $controller to children of $1; this happens inside a container whose own processes sit in its root control group"
    done
}

cgroup_remove() {
    local hierarchy group controller
    [[ -e $DATA/cgroup-made ]] || return 0
    for hierarchy in $(cgroup_hierarchies); do
        [[ -d $hierarchy/$CGROUP ]] || continue
        # Children first. A group whose last process just ended may be busy for a moment.
        find "$hierarchy/$CGROUP" -depth -type d | while read -r group; do
            rmdir "$group" 2>/dev/null || { sleep 0.2; rmdir "$group"; } || warn "control group $group remains"
        done
    done
    [[ -e $DATA/cgroup-subtree-control ]] || return 0
    for controller in $(</sys/fs/cgroup/cgroup.subtree_control); do
        grep -qw "$controller" "$DATA/cgroup-subtree-control" ||
            echo "-$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    done
}
