# The cluster's certificate authorities, certificates, keys and kubeconfigs. All
# are made anew at each start and removed by `stop`.

# authority NAME SUBJECT: etcd gets one of its own, since it takes every
# certificate of its authority for full access, also those of nodes.
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
        -subj "$2" -keyout "$PKI/$1.key" -out "$PKI/$1.crt" \
        -addext 'keyUsage=critical,keyCertSign,cRLSign' 2>>"$LOGS/openssl.log"
}

# certificate NAME AUTHORITY SUBJECT USAGE [ALTERNATIVE NAMES]
certificate() {
    local name=$1 authority=$2 subject=$3 usage=$4 names=${5:-}
    {
        echo 'basicConstraints=critical,CA:FALSE'
        echo 'keyUsage=critical,digitalSignature'
        echo "extendedKeyUsage=$usage"
        [[ -z $names ]] || echo "subjectAltName=$names"
    } >"$PKI/$name.extensions"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$subject" \
        -keyout "$PKI/$name.key" -out "$PKI/$name.request" 2>>"$LOGS/openssl.log"
    # A serial number of its own each, without a counter file, so that several
    # can be signed at the same time.
    openssl x509 -req -in "$PKI/$name.request" -CA "$PKI/$authority.crt" -CAkey "$PKI/$authority.key" \
        -set_serial "0x$(openssl rand -hex 16)" -days 365 -extfile "$PKI/$name.extensions" \
        -out "$PKI/$name.crt" 2>>"$LOGS/openssl.log"
    rm "$PKI/$name.request" "$PKI/$name.extensions"
}

certificates_make() {
    local client=clientAuth server=serverAuth job
    local -a jobs=()
    umask 077
    mkdir -p "$PKI" "$LOGS"
    authority ca /CN=kubernetes & jobs+=($!)
    authority etcd-ca /CN=etcd & jobs+=($!)
    authority front-proxy-ca /CN=front-proxy & jobs+=($!)
    openssl ecparam -genkey -name prime256v1 -noout -out "$PKI/service-account.key" & jobs+=($!)
    for job in "${jobs[@]}"; do wait "$job"; done
    jobs=()
    certificate etcd etcd-ca /CN=etcd "$server,$client" "IP:127.0.0.1,DNS:localhost" & jobs+=($!)
    certificate etcd-client etcd-ca /CN=kube-apiserver "$client" & jobs+=($!)
    certificate apiserver ca /CN=kube-apiserver "$server" \
        "IP:127.0.0.1,IP:$ADDRESS,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local" & jobs+=($!)
    certificate front-proxy front-proxy-ca /CN=front-proxy "$client" & jobs+=($!)
    certificate admin ca /O=system:masters/CN=kubernetes-admin "$client" & jobs+=($!)
    certificate controller-manager ca /CN=system:kube-controller-manager "$client" & jobs+=($!)
    if [[ $CONTROL_PLANE_ONLY == no ]]; then
        certificate apiserver-kubelet-client ca /CN=kube-apiserver-kubelet-client "$client" & jobs+=($!)
        certificate scheduler ca /CN=system:kube-scheduler "$client" & jobs+=($!)
        certificate kubelet ca "/O=system:nodes/CN=system:node:$NODE" "$client" & jobs+=($!)
        certificate kubelet-server ca "/O=system:nodes/CN=system:node:$NODE" "$server" "IP:$ADDRESS,DNS:$NODE" & jobs+=($!)
        certificate proxy ca /CN=system:kube-proxy "$client" & jobs+=($!)
        certificate provisioner ca /CN=provisioner "$client" & jobs+=($!)
    fi
    for job in "${jobs[@]}"; do wait "$job"; done
    kubeconfig_make admin "$KUBECONFIG_ADMIN"
    kubeconfig_make controller-manager "$PKI/controller-manager.kubeconfig"
    if [[ $CONTROL_PLANE_ONLY == no ]]; then
        for job in scheduler kubelet proxy provisioner; do
            kubeconfig_make "$job" "$PKI/$job.kubeconfig"
        done
        # kube-network-policies knows only the configuration of a pod: a token.
        printf '%s,kube-network-policies,kube-network-policies\n' \
            "$(openssl rand -hex 32)" >"$PKI/tokens.csv"
    fi
    umask 022
}

kubeconfig_make() {
    local encoded
    encoded() { base64 -w0 <"$PKI/$1"; }
    cat >"$2" <<TEXT
apiVersion: v1
kind: Config
clusters:
- name: $NAME
  cluster:
    server: https://$ADDRESS:$PORT
    certificate-authority-data: $(encoded ca.crt)
users:
- name: $1
  user:
    client-certificate-data: $(encoded "$1.crt")
    client-key-data: $(encoded "$1.key")
contexts:
- name: agent-workspace-$NAME
  context: {cluster: $NAME, user: $1}
current-context: agent-workspace-$NAME
TEXT
}
