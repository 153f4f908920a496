# Start, stop, status and the questions about a running cluster.

cluster_start() {
    [[ $CONTROL_PLANE_ONLY == yes ]] || { need_root; need_own_root; }
    build_all
    load_programs
    lock_cluster
    if cluster_is_running; then
        say "the cluster $NAME is running already; KUBECONFIG=$KUBECONFIG_ADMIN"
        return
    fi
    # What a start that was cut short, or a machine that went down, left behind.
    [[ ! -e $DATA ]] || remove_everything
    # From here on, a failure or Ctrl-C takes everything back.
    trap start_failed EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    mkdir -p "$STATE" "$DATA"/{run,logs,processes,kubelet,pod-logs,volumes}
    # Pods reach their volumes and mounted files through these folders.
    chmod 711 "$STATE" "$STATE/clusters" "$DATA"
    index_take
    certificates_make
    if [[ $CONTROL_PLANE_ONLY == yes ]]; then start_control_plane; else start_node; fi
    touch "$DATA/started"
    trap - EXIT INT TERM HUP
    say "the cluster $NAME runs (after $SECONDS s); KUBECONFIG=$KUBECONFIG_ADMIN"
}

start_failed() {
    local code=$?
    trap '' INT TERM HUP
    trap - EXIT
    # A command that fails here must not stop the rest of the cleaning.
    set +e
    # What this script itself still has running; components are not among these.
    jobs -p | xargs -r kill -KILL 2>/dev/null
    wait
    if ((code != 130 && code != 143)) && [[ -d $LOGS ]]; then
        rm -rf "$STATE/failed-$NAME"
        cp -r "$LOGS" "$STATE/failed-$NAME"
        warn "the cluster $NAME did not start; its logs are in $STATE/failed-$NAME"
    else
        warn "interrupted; removing what was started of the cluster $NAME"
    fi
    remove_everything
    exit "$code"
}

start_control_plane() {
    etcd_start
    api_server_start
    wait_until 60 "the API server" admin_get /readyz
    controller_manager_start
    wait_until 30 "the controller manager" control_plane_ready
}

# Proof that the controllers work: each namespace gets its default account.
control_plane_ready() {
    admin_get /api/v1/namespaces/default/serviceaccounts/default
}

start_node() {
    local images
    images=$(images_folder)
    network_create
    resolvers_configure
    pod_network_configure
    namespaces_create
    network_connect
    etcd_start
    api_server_start
    containerd_start
    wait_until 30 "containerd" containerd_ready
    local archive
    for archive in pause busybox coredns; do
        image_import "$images/$archive.tar"
    done
    wait_until 60 "the API server" admin_get /readyz
    controller_manager_start
    scheduler_start
    kubelet_start
    proxy_start
    addons_apply
    provisioner_start
    network_policies_start
    network_policies_feed
    canary_start
    wait_until 60 "the node" node_ready
    wait_until 60 "CoreDNS" dns_ready
    canary_finish
}

cluster_is_running() {
    local record
    [[ -e $DATA/started ]] || return 1
    for record in "$RECORDS"/*; do
        process_is_ours "$record" || return 1
    done
}

cluster_stop() {
    lock_cluster
    if [[ ! -e $DATA ]]; then
        say "the cluster $NAME does not exist"
        return
    fi
    [[ ! -e $DATA/first-process ]] || need_root
    remove_everything
    say "the cluster $NAME is gone"
}

cluster_stop_all() {
    local folder failed=no
    for folder in "$STATE/clusters"/*/; do
        [[ -d $folder ]] || continue
        (use_name "$(basename "$folder")" && cluster_stop) || failed=yes
    done
    [[ $failed == no ]] || return 1
    # The last one gone: also the logs of failed starts and the empty folders,
    # unless another command holds the lock of a cluster that it is about to make.
    for folder in "$STATE"/locks/*; do
        [[ ! -e $folder ]] || flock -n "$folder" true || return 0
    done
    rm -rf --one-file-system "$STATE"/{clusters,indexes,locks,failed-*}
    rmdir "$STATE" 2>/dev/null || true
}

# Removes the cluster whatever state it is in; used by stop and by start.
remove_everything() {
    local record mounted
    namespaces_end
    for record in "$RECORDS"/*; do
        [[ -e $record ]] || continue
        process_end "$record"
    done
    network_remove
    cgroup_remove
    # Everything was mounted inside the namespaces and is gone with them. If not,
    # deleting would reach into whatever is mounted there.
    mounted=$(awk -v data="$DATA/" 'index($5, data) == 1 { print $5 }' /proc/self/mountinfo | tac)
    while read -r record; do
        [[ -z $record ]] || umount "$record" || umount --lazy "$record"
    done <<<"$mounted"
    index_release
    rm -rf --one-file-system "$DATA"
}

cluster_status() {
    local record state
    if [[ ! -e $DATA ]]; then
        say "the cluster $NAME does not exist"
        exit 3
    fi
    for record in "$RECORDS"/*; do
        [[ -e $record ]] || continue
        state=ended
        ! process_is_ours "$record" || state=runs
        printf '%-24s %s\n' "$(basename "$record")" "$state"
    done
    if ! cluster_is_running; then
        say "the cluster $NAME is not running, or not completely"
        exit 3
    fi
    say "the cluster $NAME runs; KUBECONFIG=$KUBECONFIG_ADMIN"
}

cluster_list() {
    local folder state
    for folder in "$STATE/clusters"/*/; do
        [[ -d $folder ]] || continue
        use_name "$(basename "$folder")"
        state='not running'
        ! cluster_is_running || state=running
        printf '%-24s %s\n' "$NAME" "$state"
    done
}

cluster_logs() {
    if (($# == 0)); then
        [[ -d $LOGS ]] || die "the cluster $NAME does not exist"
        find "$LOGS" -name '*.log' -printf '%f\n' | sed 's/\.log$//' | sort
        return
    fi
    [[ $1 =~ ^[a-z-]+$ && -r $LOGS/$1.log ]] || die "there is no log of $1; see: cluster logs --name $NAME"
    cat "$LOGS/$1.log"
}

cluster_path() {
    [[ -d $DATA ]] || die "the cluster $NAME does not exist"
    case $1 in
        data) say "$DATA" ;;
        logs) say "$LOGS" ;;
        audit-log) say "$LOGS/audit.log" ;;
        volumes) say "$DATA/volumes" ;;
        kubeconfig) say "$KUBECONFIG_ADMIN" ;;
        certificates) say "$PKI" ;;
        containerd-socket) say "$DATA/run/containerd.sock" ;;
        *) die "there is no path $1; see: cluster --help" ;;
    esac
}
