# The node: containerd, pod network, kubelet, kube-proxy, volume provisioner.

containerd_start() {
    local snapshotter=overlayfs
    # Copying is slow but right, where the data lies on a file system (such as
    # an overlay itself) that cannot be below an overlay.
    overlay_works || { snapshotter=native; warn "no overlay mounts on $DATA: images are copied instead"; }
    cat >"$DATA/containerd.toml" <<TEXT
version = 3
root = "$DATA/containerd"
state = "/run/containerd"
# Unused here, and slow to start or noisy.
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$DATA/run/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "$snapshotter"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "$IMAGE_PAUSE"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE a lower value than the own one cannot be set, and
  # every pod would fail with "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$DATA/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "${PROGRAM[runc]}"
  SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  # The network policies learn a pod's address from it before the pod starts.
  disable = false
TEXT
    # The shim is looked up beside containerd, in PATH.
    node_start containerd env PATH="${PROGRAM[containerd]%/*}:$PATH" \
        "${PROGRAM[containerd]}" --config "$DATA/containerd.toml" --log-level warn
}

overlay_works() {
    local folder=$DATA/overlay-probe result=1
    mkdir -p "$folder"/{lower,upper,work,merged}
    if mount -t overlay -o "lowerdir=$folder/lower,upperdir=$folder/upper,workdir=$folder/work" \
        overlay "$folder/merged" 2>/dev/null; then
        umount "$folder/merged"
        result=0
    fi
    rm -rf "$folder"
    return $result
}

pod_network_configure() {
    mkdir -p "$DATA/cni"
    cat >"$DATA/cni/10-bridge.conflist" <<TEXT
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": "$POD_SUBNET"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
TEXT
}

# The resolvers that pods with dnsPolicy Default, and CoreDNS, forward to. Without
# --internet there are none: a name outside the cluster fails at once.
resolvers_configure() {
    local file=/etc/resolv.conf
    if [[ $INTERNET == yes ]]; then
        # A resolver on this machine's loopback is out of reach for pods; systemd
        # keeps the real ones beside.
        ! grep -qE '^nameserver 127\.' "$file" || file=/run/systemd/resolve/resolv.conf
        grep -E '^(nameserver|search|options)' "$file" >"$DATA/resolv.conf" ||
            die "--internet needs a nameserver that is not on loopback in $file"
    else
        : >"$DATA/resolv.conf"
    fi
}

kubelet_start() {
    cat >"$DATA/kubelet.yaml" <<TEXT
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication:
  # An open kubelet lets any pod run commands as root in any other.
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "$PKI/ca.crt"}
authorization: {mode: Webhook}
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
tlsCertFile: "$PKI/kubelet-server.crt"
tlsPrivateKeyFile: "$PKI/kubelet-server.key"
containerRuntimeEndpoint: "unix://$DATA/run/containerd.sock"
clusterDNS: ["10.96.0.10"]
clusterDomain: cluster.local
resolvConf: "$DATA/resolv.conf"
cgroupDriver: cgroupfs
cgroupRoot: "/$CGROUP"
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
maxPods: 250
serializeImagePulls: false
volumePluginDir: "$DATA/volume-plugins"
# Fractions of the machine's disk and memory say nothing about this cluster's
# share; a test must not be evicted because the machine is full.
evictionHard:
  memory.available: "0%"
  nodefs.available: "0%"
  nodefs.inodesFree: "0%"
  imagefs.available: "0%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
TEXT
    node_start kubelet "${PROGRAM[kubelet]}" --config "$DATA/kubelet.yaml" --root-dir /var/lib/kubelet \
        --kubeconfig "$PKI/kubelet.kubeconfig" --hostname-override "$NODE" --node-ip "$NODE_ADDRESS"
}

proxy_start() {
    node_start kube-proxy "${PROGRAM[kube-proxy]}" --kubeconfig "$PKI/proxy.kubeconfig" \
        --hostname-override "$NODE" --proxy-mode iptables --cluster-cidr "$POD_NETWORK" \
        --conntrack-max-per-core 0 --iptables-localhost-nodeports=false \
        --iptables-min-sync-period 100ms \
        --healthz-bind-address 127.0.0.1:10256 --metrics-bind-address 127.0.0.1:10249
}

provisioner_start() {
    node_start provisioner "${PROGRAM[provisioner]}" --kubeconfig "$PKI/provisioner.kubeconfig" \
        --node "$NODE" --folder "$DATA/volumes"
}

containerd_ready() {
    "${PROGRAM[ctr]}" --address "$DATA/run/containerd.sock" --connect-timeout 1s version
}

node_ready() {
    [[ $(kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null) == True ]]
}
