# What the tests share: waiting, pods, and a picture of the machine.

IMAGE=agent-workspace-operator.test/busybox:1

k() { "$KUBECTL" "$@"; }

fail() { echo "$*"; exit 1; }
skip() { echo "$*"; exit 77; }

# expect WANTED ACTUAL
expect() {
    [[ $1 == "$2" ]] || fail "expected '$1', got '$2'"
}

# within SECONDS COMMAND...: until the command succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "not within the time: $*"
        sleep 0.05
    done
}

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# pod NAME NAMESPACE [LABELS] [MORE OF THE SPECIFICATION] [COMMAND] [MORE OF THE CONTAINER]
# in YAML's flow style.
pod() {
    cat <<TEXT
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: $2, labels: {app: $1${3:+, $3}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
${4:+$(sed 's/^/  /' <<<"$4")}
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "${5:-exec sleep infinity}"]
${6:+$(sed 's/^/    /' <<<"$6")}
---
TEXT
}

ready() { k -n "$1" wait --for=condition=Ready --timeout=60s pod "${@:2}"; }

address() { k -n "$1" get pod "$2" -o 'jsonpath={.status.podIP}'; }

# in_pod NAMESPACE POD COMMAND...
in_pod() { k -n "$1" exec "$2" -- "${@:3}"; }

# fetch NAMESPACE POD URL [SECONDS]: what a pod gets. Busybox's own time limit for wget
# crashes in Debian's static build, so another program sets it.
fetch() { in_pod "$1" "$2" timeout "${4:-2}" wget -q -O - "$3" 2>&1; }

answers() { [[ $(fetch "$@") == answer ]]; }
denied() { ! answers "$@" 1; }

readonly SERVE='echo answer >/tmp/answer && exec httpd -f -p 8080 -h /tmp'

# The pods that most tests use; they start together.
load_pods() {
    k create namespace test >/dev/null
    { pod server test '' '' "$SERVE"; pod client test 'role: client'; pod other test 'role: other'
        pod on-node test '' 'hostNetwork: true'; } | k apply -f - >/dev/null
    ready test server client other on-node >/dev/null || exit 1
}

# Everything that a cluster could leave behind, in lines that can be compared.
# Other clusters and programs may run at the same time: what is theirs is left out.
machine_state() {
    awk '$5 ~ /agent-workspace|kubelet|containerd|netns|cni|var.log/ { print "mount", $5 }' /proc/self/mountinfo
    ip -o link show | awk -F': ' '$2 !~ /^awo/ { print "interface", $2 }'
    ip -o link show | grep -c "awo$(cat "/var/lib/agent-workspace-operator/clusters/$NAME/index" 2>/dev/null || echo none)[@:]" || true
    ip -4 route show | grep -v 'dev awo' || true
    # iptables makes a table with its first rule and keeps it when that is gone: empty, it changes nothing.
    iptables-save 2>/dev/null |
        awk '/^[*]/ { table = $1 } /^-/ { print table, $0 } /^:/ && $2 != "ACCEPT" { print table, $1, $2 }' || true
    find /sys/fs/cgroup -type d -name "agent-workspace-*-$NAME" -printf 'group %p\n'
    find /var/lib/agent-workspace-operator/clusters -maxdepth 1 -name "$NAME*" -printf 'folder %p\n' 2>/dev/null
    grep -ls "^$NAME" /var/lib/agent-workspace-operator/indexes/* 2>/dev/null || true
    echo "forwarding $(cat /proc/sys/net/ipv4/ip_forward)"
    ls -d /var/lib/kubelet /var/lib/containerd /run/containerd /etc/cni/net.d /var/log/pods 2>/dev/null || true
    pgrep -fa "agent-workspace-operator/clusters/$NAME" | sed 's/^/process /' || true
}
