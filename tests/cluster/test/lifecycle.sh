# Start, stop, and everything that can go wrong between them.

test_bad_name() {
    local name
    for name in ../other 'a b' UPPER '' "$(printf 'a%.0s' {1..40})"; do
        ! "$CLUSTER" start --name "$name" || fail "the name '$name' was taken"
    done
}

test_status_of_nothing() {
    local code=0
    "$CLUSTER" status --name "$NAME" || code=$?
    expect 3 "$code"
}

test_build_is_cached() {
    local before output
    before=$(milliseconds)
    output=$("$CLUSTER" build)
    (($(milliseconds) - before < 1000)) || fail "it took $(($(milliseconds) - before)) ms"
    expect '' "$output"
}

test_control_plane_only() {
    local code=0 kubectl
    kubectl=$("$CLUSTER" bin kubectl)
    "$CLUSTER" start --name "$NAME-plane" --control-plane-only
    export KUBECONFIG
    KUBECONFIG=$("$CLUSTER" kubeconfig --name "$NAME-plane")
    [[ $("$kubectl" config view -o 'jsonpath={.clusters[0].cluster.server}') == https://127.0.0.1:* ]]
    "$kubectl" create namespace one
    "$kubectl" -n one create configmap two --from-literal=a=b
    "$CLUSTER" status --name "$NAME-plane"
    "$CLUSTER" stop --name "$NAME-plane"
    "$CLUSTER" status --name "$NAME-plane" || code=$?
    expect 3 "$code"
    ! pgrep -fa "clusters/$NAME-plane/" || fail "processes remain"
}

# In a user namespace the files stay readable, but no privilege is left.
test_control_plane_without_root() {
    local cache kubectl
    unshare --user --map-user=1000 true 2>/dev/null || skip "the kernel lets no one make a user namespace"
    cache=$(dirname "$(dirname "$(dirname "$(dirname "$(dirname "$("$CLUSTER" bin kubectl)")")")")")
    kubectl=$("$CLUSTER" bin kubectl)
    cat >"$WORK/without-root" <<TEXT
set -euo pipefail
export HOME=$WORK/home AGENT_WORKSPACE_CACHE=$cache
test \$(id -u) = 1000
"$CLUSTER" start --name $NAME-plane --control-plane-only
trap '"$CLUSTER" stop --name $NAME-plane' EXIT
"$kubectl" --kubeconfig "\$("$CLUSTER" kubeconfig --name $NAME-plane)" get namespace default
! "$CLUSTER" start --name $NAME-second
TEXT
    mkdir -p "$WORK/home"
    unshare --user --map-user=1000 bash "$WORK/without-root"
}

# start_and_signal SIGNAL CONDITION...: ends a start once the condition holds.
start_and_signal() {
    local signal=$1 starter
    shift
    setsid "$CLUSTER" start --name "$NAME" >"$WORK/interrupted" 2>&1 &
    starter=$!
    within 60 "$@"
    kill -s "$signal" "$starter"
    wait "$starter" || true
}

kubelet_runs() { [[ -e /var/lib/agent-workspace-operator/clusters/$NAME/processes/kubelet ]]; }
namespaces_made() { [[ -e /var/lib/agent-workspace-operator/clusters/$NAME/first-process ]]; }
certificates_begun() { [[ -d /var/lib/agent-workspace-operator/clusters/$NAME/certificates ]]; }

test_interrupted_start() {
    local condition
    for condition in certificates_begun namespaces_made kubelet_runs; do
        start_and_signal TERM "$condition"
        machine_state | diff "$WORK/before" - || fail "after $condition"
    done
}

test_killed_start() {
    local code=0 condition
    for condition in namespaces_made kubelet_runs; do
        start_and_signal KILL "$condition"
        code=0
        "$CLUSTER" status --name "$NAME" || code=$?
        expect 3 "$code"
    done
    "$CLUSTER" start --name "$NAME"
    "$CLUSTER" status --name "$NAME"
    "$CLUSTER" stop --name "$NAME"
    machine_state | diff "$WORK/before" -
}

# A program that only fails, in a copy of the cache's folders.
test_broken_component() {
    local cache=$WORK/cache real code=0
    real=$(dirname "$(dirname "$("$CLUSTER" bin kubectl)")")
    mkdir -p "$cache/agent-workspace-operator/cluster/components"
    local folder copy
    for folder in "$real"/*/; do
        copy=$cache/agent-workspace-operator/cluster/components/$(basename "$folder")
        mkdir "$copy"
        ln -s "$folder"* "$copy/"
    done
    rm "$cache"/agent-workspace-operator/cluster/components/etcd-*/etcd
    printf '#!/bin/sh\necho the disk is on fire\nexit 1\n' >"$WORK/etcd"
    chmod +x "$WORK/etcd"
    for folder in "$cache"/agent-workspace-operator/cluster/components/etcd-*/; do cp "$WORK/etcd" "$folder/etcd"; done
    AGENT_WORKSPACE_CACHE=$cache "$CLUSTER" start --name "$NAME-broken" --control-plane-only >"$WORK/broken" 2>&1 || code=$?
    cat "$WORK/broken"
    expect 1 "$code"
    grep -q 'etcd ended' "$WORK/broken"
    grep -q 'the disk is on fire' "$WORK/broken"
    rm -rf "/var/lib/agent-workspace-operator/failed-$NAME-broken"
    ! pgrep -fa "clusters/$NAME-broken/" || fail "processes remain"
}

test_started_twice() {
    local output
    output=$("$CLUSTER" start --name "$NAME")
    expect "the cluster $NAME is running already; KUBECONFIG=$KUBECONFIG" "$output"
}

test_side_by_side() {
    "$CLUSTER" start --name "$NAME-second"
    local second
    second=$("$CLUSTER" kubeconfig --name "$NAME-second")
    k --kubeconfig "$second" get node node1
    ! k --kubeconfig "$second" get namespace test || fail "it is the same cluster"
    "$CLUSTER" stop --name "$NAME-second"
    k get namespace test
    fetch test client "http://$(address test server):8080/answer"
}

test_host_reaches_pods() {
    expect answer "$(curl -s -m 5 "http://$(address test server):8080/answer")"
    expect one "$(in_pod test client echo one)"
    pod talker test '' 'restartPolicy: Never' 'echo a line' | k apply -f -
    k -n test wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s pod/talker
    expect 'a line' "$(k -n test logs talker)"
}

test_pod_starts_fast() {
    local before after
    before=$(milliseconds)
    pod quick test | k apply -f -
    ready test quick
    after=$(milliseconds)
    echo "ready after $((after - before)) ms"
    # On a busy machine of two processors; alone it is about one second.
    ((after - before < 5000))
}

test_user_namespace() {
    pod inner test '' 'hostUsers: false' | k apply -f -
    if ! ready test inner; then
        k -n test describe pod inner | grep -i 'user namespace\|idmap' && skip "the kernel cannot map the pod's files"
        k -n test describe pod inner
        fail "the pod did not start"
    fi
    local outside
    outside=$(in_pod test inner cat /proc/self/uid_map | awk '{ print $2 }')
    ((outside >= 65536)) || fail "root of the pod is user $outside of the machine"
}

test_helm() {
    local helm
    helm=$("$CLUSTER" bin helm)
    mkdir -p "$WORK/chart/templates"
    printf 'apiVersion: v2\nname: small\nversion: 1.0.0\n' >"$WORK/chart/Chart.yaml"
    printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: small}\ndata: {a: b}\n' >"$WORK/chart/templates/map.yaml"
    "$helm" install small "$WORK/chart" --namespace test --wait
    expect b "$(k -n test get configmap small -o 'jsonpath={.data.a}')"
    "$helm" uninstall small --namespace test
}

# The archive is made from the busybox one under another name.
test_load_image() {
    local archives name=example.test/renamed:2
    archives=$(find "$(dirname "$(dirname "$("$CLUSTER" bin kubectl)")")" -name 'images-*' -print -quit)
    mkdir "$WORK/image"
    tar -C "$WORK/image" -xf "$archives/busybox.tar"
    sed -i "s|\"RepoTags\":\[[^]]*\]|\"RepoTags\":[\"$name\"]|" "$WORK/image/manifest.json"
    tar -C "$WORK/image" -czf "$WORK/renamed.tar.gz" manifest.json config.json layer.tar
    "$CLUSTER" load-image --name "$NAME" "$WORK/renamed.tar.gz"
    pod renamed test | sed "s|image: .*|image: $name|" | k apply -f -
    ready test renamed
    ! "$CLUSTER" load-image --name "$NAME" "$WORK/nothing.tar"
}

test_audit_log() {
    local log
    log=$("$CLUSTER" path audit-log --name "$NAME")
    k -n test create configmap recorded --as somebody --as-group system:masters
    grep '"verb":"create"' "$log" | grep '"name":"recorded"' | grep '"impersonatedUser":{"username":"somebody"'
    ! grep '"name":"recorded"' "$log" | grep requestObject || fail "bodies are recorded"
}

# The record names a process of someone else: it is neither believed nor ended.
test_stale_record() {
    local records code=0 stranger
    records=$(dirname "$("$CLUSTER" path logs --name "$NAME")")/processes
    sleep 300 &
    stranger=$!
    cp "$records/kubelet" "$WORK/kubelet-record"
    echo "$stranger 12345" >"$records/kubelet"
    "$CLUSTER" status --name "$NAME" || code=$?
    expect 3 "$code"
    "$CLUSTER" start --name "$NAME"
    "$CLUSTER" status --name "$NAME"
    kill -0 "$stranger" || fail "the stranger was ended"
    kill "$stranger"
}

test_internet_rules() {
    "$CLUSTER" stop --name "$NAME"
    local before
    before=$(cat /proc/sys/net/ipv4/ip_forward)
    if ! "$CLUSTER" start --name "$NAME" --internet; then
        grep -qE '^nameserver [^1]' /etc/resolv.conf || skip "this machine has no name server that pods could use"
        fail "it did not start"
    fi
    expect 1 "$(cat /proc/sys/net/ipv4/ip_forward)"
    expect 4 "$(iptables-save | grep -cE "agent-workspace-[0-9]+-$NAME")"
    "$CLUSTER" stop --name "$NAME"
    expect "$before" "$(cat /proc/sys/net/ipv4/ip_forward)"
    ! iptables-save | grep -E "agent-workspace-[0-9]+-$NAME" || fail "rules remain"
}

test_stopped_twice() {
    "$CLUSTER" stop --name "$NAME"
    "$CLUSTER" stop --name "$NAME"
}

test_nothing_left() {
    machine_state | diff "$WORK/before" -
}
