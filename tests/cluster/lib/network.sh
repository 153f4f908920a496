# Addresses and ports that do not collide with another cluster of this machine,
# and the pair of interfaces that joins a node's network to the machine's.

# Takes the lowest free index below 50 and derives everything that must differ.
index_take() {
    local index taken
    mkdir -p "$STATE/indexes"
    exec 8>"$STATE/indexes/.lock"
    flock -w 30 8 || die "the list of clusters stayed locked"
    for index in {0..49}; do
        taken=$STATE/indexes/$index
        # A cluster whose folder is gone no longer needs its index.
        [[ ! -e $taken || $(<"$taken") == "$NAME" || ! -d $STATE/clusters/$(<"$taken") ]] || continue
        use_index "$index"
        index_is_free || continue
        echo "$NAME" >"$taken"
        echo "$index" >"$DATA/index"
        exec 8>&-
        return
    done
    die "no free addresses: 50 clusters exist; see 'cluster list' and 'cluster stop --all'"
}

readonly SERVICE_NETWORK=10.96.0.0/16

use_index() {
    INDEX=$1
    # 198.18.0.0/15 is set aside for tests between networks (RFC 2544), so it is
    # no one's office or cloud network.
    HOST_ADDRESS=198.18.$INDEX.1
    NODE_ADDRESS=198.18.$INDEX.2
    POD_NETWORK=10.$((200 + INDEX)).0.0/16
    POD_SUBNET=10.$((200 + INDEX)).0.0/24
    INTERFACE=awo$INDEX
    # The index is free on this kernel, the name perhaps only in this root file system.
    CGROUP=agent-workspace-$INDEX-$NAME
    if [[ $CONTROL_PLANE_ONLY == yes ]]; then
        ADDRESS=127.0.0.1 PORT=$((26440 + INDEX * 10))
    else
        ADDRESS=$NODE_ADDRESS PORT=6443
    fi
    ETCD_PORT=$((PORT + 1)) ETCD_PEER_PORT=$((PORT + 2)) CONTROLLER_PORT=$((PORT + 3))
}

index_is_free() {
    local port
    if [[ $CONTROL_PLANE_ONLY == yes ]]; then
        for port in $PORT $ETCD_PORT $ETCD_PEER_PORT $CONTROLLER_PORT; do
            ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 1
        done
        return
    fi
    # Another program, or a cluster of another root file system on this kernel.
    ! ip link show "$INTERFACE" >/dev/null 2>&1 &&
        ! ip -4 route show | grep -E "^(198\.18\.$INDEX\.|10\.$((200 + INDEX))\.)" >/dev/null
}

index_release() {
    local index
    [[ -r $DATA/index ]] || return 0
    index=$(<"$DATA/index")
    [[ ! -e $STATE/indexes/$index || $(<"$STATE/indexes/$index") != "$NAME" ]] || rm -f "$STATE/indexes/$index"
}

network_create() {
    # Loads the module where the kernel has it as one; a kernel that has neither
    # is refused by the node's first process.
    [[ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]] || modprobe br_netfilter 2>/dev/null || true
    [[ -e /proc/filesystems ]] && grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || true
}

# After the namespaces exist: the pair, its addresses, and the route to pods.
network_connect() {
    ip link add "$INTERFACE" type veth peer name eth0 netns "$FIRST_PROCESS"
    # From here on it is ours to remove; before, it could have been someone else's.
    touch "$DATA/interface-made"
    ip address add "$HOST_ADDRESS/30" dev "$INTERFACE"
    ip link set "$INTERFACE" up
    enter ip link set lo up
    enter ip address add "$NODE_ADDRESS/30" dev eth0
    enter ip link set eth0 up
    # Processes of the node itself find Services only if there is some route to
    # their addresses, before the rules of kube-proxy change these.
    enter ip route add "$SERVICE_NETWORK" via "$HOST_ADDRESS"
    ip route add "$POD_NETWORK" via "$NODE_ADDRESS" dev "$INTERFACE"
    # Without it there is no way out at all: a pod is told so at once.
    [[ $INTERNET == no ]] || { enter ip route add default via "$HOST_ADDRESS"; internet_open; }
}

network_remove() {
    [[ -r $DATA/index ]] || return 0
    use_index "$(<"$DATA/index")"
    internet_close
    # It vanishes with the namespace, a moment later; here it is made sure.
    [[ ! -e $DATA/interface-made ]] || ip link del "$INTERFACE" 2>/dev/null || true
}

# Lets pods out through the machine: forwarding, and its address instead of theirs.
# Each rule carries the cluster's name, by which it is found again.
internet_rules() {
    local source
    for source in "$POD_NETWORK" "198.18.$INDEX.0/30"; do
        iptables -w "$1" POSTROUTING -t nat -s "$source" ! -o "$INTERFACE" \
            -m comment --comment "$CGROUP" -j MASQUERADE || [[ $1 == -D ]] || return 1
    done
    iptables -w "$1" FORWARD -i "$INTERFACE" -m comment --comment "$CGROUP" -j ACCEPT || [[ $1 == -D ]] || return 1
    iptables -w "$1" FORWARD -o "$INTERFACE" -m conntrack --ctstate RELATED,ESTABLISHED \
        -m comment --comment "$CGROUP" -j ACCEPT || [[ $1 == -D ]]
}

internet_open() {
    cat /proc/sys/net/ipv4/ip_forward >"$DATA/ip-forward-before"
    internet_rules -I
    echo 1 >/proc/sys/net/ipv4/ip_forward
}

internet_close() {
    [[ -e $DATA/ip-forward-before ]] || return 0
    internet_rules -D 2>/dev/null || true
    cat "$DATA/ip-forward-before" >/proc/sys/net/ipv4/ip_forward
}
