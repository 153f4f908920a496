# The default StorageClass: binding, ownership, growth, deletion.

claim() {
    cat <<TEXT
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1, namespace: test}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: ${2:-100Mi}}}
---
TEXT
}

# pod_with_claim NAME CLAIM SECURITY [COMMAND]
pod_with_claim() {
    pod "$1" test '' "securityContext: {$3}
volumes: [{name: home, persistentVolumeClaim: {claimName: $2}}]" "${4:-}" 'volumeMounts: [{name: home, mountPath: /home}]'
}

phase() { k -n test get "$1" "$2" -o 'jsonpath={.status.phase}'; }
has_phase() { [[ $(phase "$1" "$2") == "$3" ]]; }
volume_of() { k -n test get pvc "$1" -o 'jsonpath={.spec.volumeName}'; }

test_claim_binds() {
    local selected bound log
    expect local "$(k get storageclass -o 'jsonpath={.items[?(@.metadata.annotations.storageclass\.kubernetes\.io/is-default-class=="true")].metadata.name}')"
    claim home | k apply -f -
    # Nothing happens before a pod asks for it.
    within 10 has_event home WaitForFirstConsumer
    expect Pending "$(phase pvc home)"
    pod_with_claim writer home 'runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000' | k apply -f -
    ready test writer
    expect Bound "$(phase pvc home)"
    # From the scheduler's choice of the node to the claim's binding, by the API
    # server's own clock.
    log=$("$CLUSTER" path audit-log --name "$NAME")
    selected=$(grep '"resource":"persistentvolumeclaims"' "$log" | grep '"name":"home"' |
        grep 'system:kube-scheduler' | grep -E '"verb":"(update|patch)"' | sed -n 1p | request_milliseconds)
    bound=$(grep '"resource":"persistentvolumeclaims"' "$log" | grep '"name":"home"' |
        grep persistent-volume-binder | grep '"subresource":"status"' | tail -n 1 | request_milliseconds)
    echo "bound after $((bound - selected)) ms"
    ((bound > selected && bound - selected < 1500))
}

has_event() { k -n test get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].reason}' | grep "$2"; }

request_milliseconds() {
    local time
    time=$(sed 's/.*"requestReceivedTimestamp":"\([^"]*\)".*/\1/')
    echo $(($(date -d "$time" +%s%N) / 1000000))
}

test_volume_group() {
    in_pod test writer sh -c 'echo text >/home/file && id -u && stat -c %g /home /home/file' | tr '\n' ' ' | grep '^1000 2000 2000 $'
}

test_volume_without_group() {
    claim bare | k apply -f -
    pod_with_claim stranger bare 'runAsUser: 1000, runAsGroup: 1000' | k apply -f -
    ready test stranger
    ! in_pod test stranger sh -c 'echo text >/home/file' || fail "it could write"
}

test_data_outlives_pod() {
    k -n test delete pod writer
    pod_with_claim reader home 'runAsUser: 1001, runAsGroup: 1001, fsGroup: 2000' | k apply -f -
    ready test reader
    expect text "$(in_pod test reader cat /home/file)"
}

test_claim_grows() {
    has_capacity() { [[ $(k -n test get pvc home -o 'jsonpath={.status.capacity.storage}') == "$1" ]]; }
    k -n test patch pvc home -p '{"spec":{"resources":{"requests":{"storage":"200Mi"}}}}'
    within 10 has_capacity 200Mi
    expect 200Mi "$(k get pv "$(volume_of home)" -o 'jsonpath={.spec.capacity.storage}')"
    expect text "$(in_pod test reader cat /home/file)"
}

test_claim_deleted() {
    local folder
    folder=$("$CLUSTER" path volumes --name "$NAME")/$(volume_of home)
    [[ -e $folder/file ]] || fail "$folder is not the volume"
    k -n test delete pod reader
    k -n test delete pvc home
    gone() { [[ ! -e $folder ]]; }
    within 20 gone
}

test_volume_kept() {
    local volume folder
    volume=$(volume_of bare)
    folder=$("$CLUSTER" path volumes --name "$NAME")/$volume
    k patch pv "$volume" -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
    k -n test delete pod stranger
    k -n test delete pvc bare
    within 10 volume_released "$volume"
    [[ -d $folder ]] || fail "the directory is gone"
    k delete pv "$volume"
    [[ -d $folder ]] || fail "the directory is gone"
}

volume_released() { [[ $(k get pv "$1" -o 'jsonpath={.status.phase}') == Released ]]; }
