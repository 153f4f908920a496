# The first process of a node's namespaces: first-process.sh FOLDER KEEP...
# It lays private folders over those that Kubernetes has fixed paths for, then
# waits and reaps. When it ends, the kernel ends every other process inside.
# The folders KEEP (programs, scripts) stay visible wherever they lie.
set -euo pipefail
data=$1
shift

# unshare made every mount private: nothing from here on is seen outside.
# The working directory keeps what will be covered within reach; mount must then
# take the paths as they are (-c) instead of looking for their full names.
cd "$data"
number=0
for folder; do
    number=$((number + 1))
    mkdir -p "kept/$number"
    mount --rbind "$folder" "kept/$number"
done
for covered in /run /var/lib /var/log; do
    mount -t tmpfs -o mode=755 cluster "$covered"
done
mkdir -p "$data" && mount -c --bind . "$data"
number=0
for folder; do
    number=$((number + 1))
    [[ -e $folder ]] || { mkdir -p "$folder" && mount -c --rbind "kept/$number" "$folder"; }
done
mkdir -p /run/lock /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers
mount --bind "$data/kubelet" /var/lib/kubelet
mount --bind "$data/pod-logs" /var/log/pods
cd /
# Containers that mount volumes for others (storage drivers) need shared mounts;
# shared among the namespaces inside, since these copies have no peer outside.
mount --make-rshared /

# kube-network-policies takes its identity from where a pod would have it.
account=/run/secrets/kubernetes.io/serviceaccount
mkdir -m 700 /run/secrets
mkdir -p "$account"
cut -d, -f1 "$data/certificates/tokens.csv" >"$account/token"
cp "$data/certificates/ca.crt" "$account/ca.crt"

# These belong to the network namespace. Without the bridge's, packets between
# two pods of the node would pass by the rules of policies and services.
echo 1 >/proc/sys/net/ipv4/ip_forward
if [[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ]]; then
    echo "the kernel has no br_netfilter: network policies between pods of one node could not be enforced" >&2
    exit 1
fi
echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables

touch "$data/run/namespaces-ready"
trap 'exit 0' TERM
sleep infinity &
while :; do
    # Returns for each child that ends, also for adopted ones, which bash reaps.
    wait || true
done
