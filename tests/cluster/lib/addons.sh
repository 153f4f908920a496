# What runs on top: names, volumes, network policies, and the proof that the
# policies are enforced.

addons_apply() {
    local forward=''
    [[ $INTERNET == no ]] || forward='forward . /etc/resolv.conf'
    {
        cat "$HERE/manifests/rights.yaml"
        echo ---
        cat "$HERE/manifests/storage.yaml"
        echo ---
        sed -e "s|@IMAGE@|$IMAGE_COREDNS|" -e "s|@FORWARD@|$forward|" "$HERE/manifests/coredns.yaml"
    } >"$DATA/addons.yaml"
    kubectl apply --server-side --field-manager=cluster -f "$DATA/addons.yaml" >>"$LOGS/addons.log"
}

network_policies_start() {
    node_start kube-network-policies env KUBERNETES_SERVICE_HOST="$NODE_ADDRESS" KUBERNETES_SERVICE_PORT="$PORT" \
        "${PROGRAM[kube-network-policies]}" --hostname-override "$NODE" --nfqueue-id 100 \
        --metrics-bind-address 127.0.0.1:19080 --netfilter-bug-1766-fix=false
}

# The first packet of each connection from a pod goes to the daemon, which was
# started before: without it such packets are dropped, never let through. In the
# mangle table, since a packet that comes back from a queue skips the rest of its
# table, and the filter table refuses connections to Services without endpoints.
# kube-network-policies adds rules of its own where the kernel's nftables can
# queue; these here work on every kernel, and asking twice does no harm.
network_policies_feed() {
    local chain
    wait_until 15 "the queue of kube-network-policies" network_policies_listen
    for chain in FORWARD INPUT; do
        enter iptables -w -t mangle -I "$chain" 1 -i cni0 -m conntrack --ctstate NEW -j NFQUEUE --queue-num 100
    done
}

network_policies_listen() {
    enter grep -qE '^ *100 ' /proc/net/netfilter/nfnetlink_queue
}

dns_ready() {
    [[ $(kubectl -n kube-system get deployment coredns -o 'jsonpath={.status.readyReplicas}' 2>/dev/null) == 1 ]]
}

# Two pods ask a third one that a policy opens to only one of them. The cluster
# counts as started when exactly that one gets an answer.
canary_start() {
    sed -e "s|@IMAGE@|$IMAGE_BUSYBOX|" "$HERE/manifests/canary.yaml" |
        kubectl apply -f - >>"$LOGS/addons.log"
}

canary_check() {
    local address
    address=$(kubectl -n cluster-canary get pod server -o 'jsonpath={.status.podIP}')
    [[ -n $address ]] || return 1
    canary_asks allowed "$address" || return 1
    ! canary_asks denied "$address"
}

canary_asks() {
    [[ $(kubectl -n cluster-canary exec "$1" -- timeout 1 wget -q -O - "http://$2:8080/answer" 2>/dev/null) == answer ]]
}

canary_finish() {
    kubectl -n cluster-canary wait --for=condition=Ready --timeout=60s pod --all >>"$LOGS/addons.log" ||
        { kubectl -n cluster-canary describe pods >&2; return 1; }
    wait_until 20 "enforced network policies" canary_check
    kubectl delete namespace cluster-canary --wait=false >>"$LOGS/addons.log"
}
