# Names, Services, and network policies.

test_names() {
    in_pod test client nslookup kubernetes.default.svc.cluster.local | grep 'Address: 10.96.0.1$'
    k -n test create service clusterip server --tcp=80:8080
    within 10 answers test client http://server.test.svc.cluster.local/answer
    # The search path of a pod adds namespace and cluster.
    within 10 answers test client http://server/answer
    k -n test create service clusterip headless --clusterip=None --tcp=8080:8080
    k -n test patch service headless -p '{"spec":{"selector":{"app":"server"}}}'
    within 10 answers test client http://headless:8080/answer
    ! in_pod test client nslookup nothing.test.svc.cluster.local || fail "a Service that is not there has an address"
}

test_service_address() {
    k -n test create service clusterip by-address --tcp=80:8080
    k -n test patch service by-address -p '{"spec":{"selector":{"app":"server"}}}'
    within 10 answers test client "http://$(k -n test get service by-address -o 'jsonpath={.spec.clusterIP}')/answer"
}

test_service_without_pods() {
    local before took
    k -n test create service clusterip empty --tcp=80:8080
    refused() {
        before=$(milliseconds)
        [[ $(fetch test client "http://$1/" 5) == *refused* ]]
    }
    within 10 refused "$(k -n test get service empty -o 'jsonpath={.spec.clusterIP}')"
    took=$(($(milliseconds) - before))
    ((took < 2000)) || fail "it took $took ms"
}

# policy NAME TYPES RULES: for pods with the label app=NAME.
policy() {
    k -n test apply -f - <<TEXT
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: $1}
spec:
  podSelector: {matchLabels: {app: $1}}
  policyTypes: [$2]
$(sed 's/^/  /' <<<"$3")
TEXT
}

test_ingress_policy() {
    local url
    pod guarded test '' '' "$SERVE" | k apply -f -
    ready test guarded
    url=http://$(address test guarded):8080/answer
    answers test client "$url"
    answers test other "$url"
    policy guarded Ingress 'ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]'
    within 5 denied test other "$url"
    answers test client "$url"
    policy guarded Ingress 'ingress: [{from: [{podSelector: {matchLabels: {role: client}}}], ports: [{port: 9}]}]'
    within 5 denied test client "$url"
    k -n test delete networkpolicy guarded
    within 5 answers test other "$url"
}

test_egress_policy() {
    local url
    url=http://$(address test server):8080/answer
    pod bound test | k apply -f -
    ready test bound
    answers test bound "$url"
    policy bound Egress 'egress: []'
    within 5 denied test bound "$url"
    policy bound Egress 'egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 8080}]}]'
    within 5 answers test bound "$url"
    # Denied by address, too: the host's end of the node's network.
    denied test bound "http://$(address test on-node):10248/healthz"
}

test_names_only() {
    local url
    url=http://$(address test server):8080/answer
    pod asker test | k apply -f -
    ready test asker
    policy asker Egress 'egress:
- to:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    podSelector: {matchLabels: {k8s-app: kube-dns}}
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]'
    within 5 denied test asker "$url"
    in_pod test asker nslookup kubernetes.default.svc.cluster.local | grep 'Address: 10.96.0.1$'
}

test_api_server_policy() {
    api_server() { in_pod test "$1" timeout 3 wget -q -S --no-check-certificate -O /dev/null https://10.96.0.1/version 2>&1; }
    pod shut test | k apply -f -
    ready test shut
    api_server shut | grep -E 'HTTP/1.1 (200|401|403)'
    policy shut Egress 'egress: []'
    cut_off() { ! api_server shut | grep HTTP/; }
    within 5 cut_off
    api_server client | grep -E 'HTTP/1.1 (200|401|403)'
}

# The policies exist before the pods, which ask with their first command.
test_first_packet() {
    local url number
    url=http://$(address test server):8080/answer
    policy hasty Egress 'egress: []'
    for number in 1 2 3 4 5; do
        pod "hasty-$number" test '' 'restartPolicy: Never' \
            "for i in 1 2 3 4 5 6 7 8; do timeout 0.5 wget -q -O - $url && echo got it; done; echo end" |
            sed "s/app: hasty-$number/app: hasty/"
    done | k apply -f -
    for number in 1 2 3 4 5; do
        k -n test wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s "pod/hasty-$number"
        expect end "$(k -n test logs "hasty-$number" | grep -v -i -e wget -e terminated)"
    done
}

# An address for documentation (RFC 5737). The node itself has no route to it, so
# no packet leaves, whatever the machine forwards.
test_no_internet() {
    [[ $(fetch test client http://198.51.100.1/ 5) == *unreachable* ]]
    [[ $(fetch test on-node http://198.51.100.1/ 5) == *unreachable* ]]
}
