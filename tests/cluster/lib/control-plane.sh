# etcd, API server, controller manager and, with a node, the scheduler.

# start_component COMPONENT COMMAND...: inside the node's namespaces if there is a node.
start_component() {
    if [[ $CONTROL_PLANE_ONLY == yes ]]; then process_start "$@"; else node_start "$@"; fi
}

# admin_get PATH: the API server's answer to the administrator.
admin_get() {
    curl --silent --show-error --fail --max-time 5 --cacert "$PKI/ca.crt" \
        --cert "$PKI/admin.crt" --key "$PKI/admin.key" "https://$ADDRESS:$PORT$1"
}

kubectl() {
    "${PROGRAM[kubectl]}" --kubeconfig "$KUBECONFIG_ADMIN" --request-timeout=30s "$@"
}

etcd_start() {
    # Only on loopback and only with a certificate of its own authority: a pod
    # reaches neither. Nothing is kept over a restart, so nothing is synced to disk.
    start_component etcd "${PROGRAM[etcd]}" --name "$NAME" --data-dir "$DATA/etcd" --unsafe-no-fsync \
        --listen-client-urls "https://127.0.0.1:$ETCD_PORT" \
        --advertise-client-urls "https://127.0.0.1:$ETCD_PORT" \
        --listen-peer-urls "https://127.0.0.1:$ETCD_PEER_PORT" \
        --initial-advertise-peer-urls "https://127.0.0.1:$ETCD_PEER_PORT" \
        --initial-cluster "$NAME=https://127.0.0.1:$ETCD_PEER_PORT" \
        --client-cert-auth --trusted-ca-file "$PKI/etcd-ca.crt" \
        --cert-file "$PKI/etcd.crt" --key-file "$PKI/etcd.key" \
        --peer-client-cert-auth --peer-trusted-ca-file "$PKI/etcd-ca.crt" \
        --peer-cert-file "$PKI/etcd.crt" --peer-key-file "$PKI/etcd.key" \
        --quota-backend-bytes $((4 * 1024 * 1024 * 1024)) --log-level warn
}

api_server_start() {
    local -a flags=(
        --etcd-servers "https://127.0.0.1:$ETCD_PORT" --etcd-cafile "$PKI/etcd-ca.crt"
        --etcd-certfile "$PKI/etcd-client.crt" --etcd-keyfile "$PKI/etcd-client.key"
        --secure-port "$PORT" --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key"
        --client-ca-file "$PKI/ca.crt"
        --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction
        --service-account-issuer https://kubernetes.default.svc.cluster.local
        --service-account-key-file "$PKI/service-account.key"
        --service-account-signing-key-file "$PKI/service-account.key"
        --service-cluster-ip-range "$SERVICE_NETWORK"
        # Tests judge the operator, not the queue in front of the API server.
        --max-requests-inflight 3000 --max-mutating-requests-inflight 1500
        # Writes are counted from it by user; metrics have no user.
        --audit-policy-file "$HERE/manifests/audit-policy.yaml" --audit-log-path "$LOGS/audit.log"
        --profiling=false
        # Tests give pods another seccomp profile than the operator does, to see what becomes of them.
        --feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true
        # The identity with which it passes requests on to extension servers.
        --requestheader-client-ca-file "$PKI/front-proxy-ca.crt" --requestheader-allowed-names front-proxy
        --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group
        --requestheader-extra-headers-prefix X-Remote-Extra-
        --proxy-client-cert-file "$PKI/front-proxy.crt" --proxy-client-key-file "$PKI/front-proxy.key"
    )
    if [[ $CONTROL_PLANE_ONLY == yes ]]; then
        # An endpoint may not be a loopback address, and no pod will ask for it.
        flags+=(--bind-address 127.0.0.1 --endpoint-reconciler-type none)
    else
        flags+=(--bind-address 0.0.0.0 --advertise-address "$ADDRESS" --allow-privileged
            --token-auth-file "$PKI/tokens.csv"
            # The node's name resolves nowhere: exec and logs go to its address.
            --kubelet-preferred-address-types InternalIP
            --kubelet-certificate-authority "$PKI/ca.crt"
            --kubelet-client-certificate "$PKI/apiserver-kubelet-client.crt"
            --kubelet-client-key "$PKI/apiserver-kubelet-client.key")
    fi
    start_component kube-apiserver "${PROGRAM[kube-apiserver]}" "${flags[@]}"
}

controller_manager_start() {
    local kubeconfig=$PKI/controller-manager.kubeconfig
    local -a flags=(
        --kubeconfig "$kubeconfig" --authentication-kubeconfig "$kubeconfig" --authorization-kubeconfig "$kubeconfig"
        --bind-address 127.0.0.1 --secure-port "$CONTROLLER_PORT" --leader-elect=false
        --use-service-account-credentials --service-account-private-key-file "$PKI/service-account.key"
        # Without it no pod could verify the API server.
        --root-ca-file "$PKI/ca.crt"
        --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key"
        # The default of 20 a second lets 300 claims wait two minutes to be bound.
        --kube-api-qps 1000 --kube-api-burst 2000
    )
    if [[ $CONTROL_PLANE_ONLY == no ]]; then
        flags+=(--allocate-node-cidrs --cluster-cidr "$POD_NETWORK" --node-cidr-mask-size 24)
    fi
    start_component kube-controller-manager "${PROGRAM[kube-controller-manager]}" "${flags[@]}"
}

scheduler_start() {
    local kubeconfig=$PKI/scheduler.kubeconfig
    start_component kube-scheduler "${PROGRAM[kube-scheduler]}" \
        --kubeconfig "$kubeconfig" --authentication-kubeconfig "$kubeconfig" --authorization-kubeconfig "$kubeconfig" \
        --bind-address 127.0.0.1 --leader-elect=false --kube-api-qps 1000 --kube-api-burst 2000
}
