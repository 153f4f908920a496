# What a pod must not be able to do to the cluster. Each refusal is set beside
# the same request by someone who may, so that a wrong address cannot pass.

node_address() { k get node node1 -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}'; }

# The kubelet's answer to the administrator, who may do everything.
kubelet_as_administrator() {
    local certificates
    certificates=$("$CLUSTER" path certificates --name "$NAME")
    curl -s -m 5 -o "$WORK/pods" -w '%{http_code}' --cacert "$certificates/ca.crt" \
        --cert "$certificates/admin.crt" --key "$certificates/admin.key" "https://$(node_address):10250$1"
}

# The first line of a server's answer to a pod, over TLS.
# status_line NAMESPACE POD HOST PORT PATH [HEADER]
status_line() {
    in_pod "$1" "$2" timeout 5 wget -q -S --no-check-certificate ${6:+--header "$6"} -O /dev/null "https://$3:$4$5" 2>&1 || true
}

test_etcd_unreachable() {
    local node
    node=$(node_address)
    # It listens, but on the node's loopback only.
    "$CLUSTER" enter --name "$NAME" bash -c '(: </dev/tcp/127.0.0.1/6444)'
    in_pod test client nc -w 2 "$node" 6443 </dev/null
    ! in_pod test client nc -w 2 "$node" 6444 </dev/null || fail "etcd takes connections of pods"
    ! in_pod test client nc -w 2 127.0.0.1 6444 </dev/null || fail "etcd listens in the pod"
}

# A pod on the node's network reaches the port, and must be turned away there.
test_etcd_refuses_strangers() {
    local certificates answer
    certificates=$("$CLUSTER" path certificates --name "$NAME")
    in_pod test on-node nc -w 2 127.0.0.1 6444 </dev/null
    answer=$(in_pod test on-node timeout 5 wget -q -O - --no-check-certificate https://127.0.0.1:6444/version 2>&1 || true)
    [[ $answer != *etcdserver* ]] || fail "etcd answered: $answer"
    # Nor is a certificate of the cluster enough: etcd has an authority of its own.
    local -a request=(curl -s -m 5 --cacert "$certificates/etcd-ca.crt" https://127.0.0.1:6444/version)
    ! "$CLUSTER" enter --name "$NAME" "${request[@]}" --cert "$certificates/admin.crt" --key "$certificates/admin.key"
    "$CLUSTER" enter --name "$NAME" "${request[@]}" \
        --cert "$certificates/etcd-client.crt" --key "$certificates/etcd-client.key" | grep etcdserver
}

test_kubelet_anonymous() {
    local path node
    node=$(node_address)
    expect 200 "$(kubelet_as_administrator /pods)"
    grep -q '"name":"client"' "$WORK/pods"
    for path in /pods /runningpods/ /metrics /exec/test/server/main?command=id\&output=1; do
        status_line test client "$node" 10250 "$path" | grep '401 Unauthorized' || fail "no 401 for $path"
        status_line test on-node 127.0.0.1 10250 "$path" | grep '401 Unauthorized' || fail "no 401 for $path on the node"
    done
}

test_kubelet_service_account() {
    local token path
    token=$(k -n test create token default)
    for path in /pods /exec/test/server/main?command=id\&output=1; do
        status_line test client "$(node_address)" 10250 "$path" "Authorization: Bearer $token" |
            grep '403 Forbidden' || fail "no 403 for $path"
    done
}

test_kubelet_ports() {
    local node port
    node=$(node_address)
    in_pod test client nc -w 2 "$node" 10250 </dev/null
    # 10255: the old port without authentication. 10248: health, loopback only.
    for port in 10255 10248 10249 10256 19080; do
        ! in_pod test client nc -w 2 "$node" "$port" </dev/null || fail "port $port takes connections of pods"
    done
}

test_certificates() {
    local certificates code=0
    certificates=$("$CLUSTER" path certificates --name "$NAME")
    openssl verify -CAfile "$certificates/ca.crt" "$certificates/kubelet-server.crt" "$certificates/apiserver.crt"
    pgrep -fa "kube-apiserver.*clusters/$NAME/" | grep -- --kubelet-certificate-authority
    # Without the authority the server is not believed; with it, it is.
    curl -s -m 5 "https://$(node_address):10250/healthz" || code=$?
    expect 60 "$code"
    expect 200 "$(kubelet_as_administrator /healthz)"
    # A pod verifies the API server by what it is given.
    k -n test get configmap kube-root-ca.crt -o 'jsonpath={.data.ca\.crt}' >"$WORK/root"
    diff <(openssl x509 -in "$WORK/root" -noout -fingerprint) <(openssl x509 -in "$certificates/ca.crt" -noout -fingerprint)
}
