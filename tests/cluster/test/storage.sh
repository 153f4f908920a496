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

readonly MEMBER='runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000'
readonly STRANGER='runAsUser: 1000, runAsGroup: 1000'

# A claim and a pod that uses it, both ready. Each test has its own.
# used_claim NAME SECURITY
used_claim() {
    { claim "$1"; pod_with_claim "$1" "$1" "$2"; } | k apply -f -
    ready test "$1"
}

folder_of() { echo "$("$CLUSTER" path volumes --name "$NAME")/$(volume_of "$1")"; }

test_volume_group() {
    used_claim grouped "$MEMBER"
    expect '1000 2000 2000 ' "$(in_pod test grouped sh -c 'echo text >/home/file && id -u && stat -c %g /home /home/file' | tr '\n' ' ')"
}

test_volume_without_group() {
    used_claim bare "$STRANGER"
    ! in_pod test bare sh -c 'echo text >/home/file' || fail "it could write"
}

test_data_outlives_pod() {
    used_claim lasting "$MEMBER"
    in_pod test lasting sh -c 'echo text >/home/file'
    k -n test delete pod lasting
    pod_with_claim reader lasting 'runAsUser: 1001, runAsGroup: 1001, fsGroup: 2000' | k apply -f -
    ready test reader
    expect text "$(in_pod test reader cat /home/file)"
}

test_claim_grows() {
    used_claim growing "$MEMBER"
    in_pod test growing sh -c 'echo text >/home/file'
    has_capacity() { [[ $(k -n test get pvc growing -o 'jsonpath={.status.capacity.storage}') == "$1" ]]; }
    has_capacity 100Mi
    k -n test patch pvc growing -p '{"spec":{"resources":{"requests":{"storage":"200Mi"}}}}'
    within 10 has_capacity 200Mi
    expect 200Mi "$(k get pv "$(volume_of growing)" -o 'jsonpath={.spec.capacity.storage}')"
    expect text "$(in_pod test growing cat /home/file)"
}

test_claim_deleted() {
    local folder
    used_claim deleted "$MEMBER"
    in_pod test deleted sh -c 'echo text >/home/file'
    folder=$(folder_of deleted)
    [[ -e $folder/file ]] || fail "$folder is not the volume"
    k -n test delete pod deleted
    k -n test delete pvc deleted
    gone() { [[ ! -e $folder ]]; }
    within 20 gone
}

test_volume_kept() {
    local volume folder
    used_claim kept "$MEMBER"
    volume=$(volume_of kept)
    folder=$(folder_of kept)
    k patch pv "$volume" -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
    k -n test delete pod kept
    k -n test delete pvc kept
    within 10 volume_released "$volume"
    [[ -d $folder ]] || fail "the directory is gone"
    k delete pv "$volume"
    [[ -d $folder ]] || fail "the directory is gone"
}

volume_released() { [[ $(k get pv "$1" -o 'jsonpath={.status.phase}') == Released ]]; }
