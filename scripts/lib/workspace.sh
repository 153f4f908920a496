# The demo workspace's token and port forward. Sourced after common.sh and choose-cluster.sh.

workspace_token() {
  kubectl -n "$OPERATOR_NAMESPACE" exec deploy/agent-workspace-operator -- \
    operator token "$WORKSPACE" --namespace "$DEMO_NAMESPACE"
}

# A process is known by its id and start time: ids are used again.
start_time() { cut -d')' -f2- "/proc/$1/stat" 2>/dev/null | awk '{ print $20 }'; }
remember_forward() { echo "$1 $(start_time "$1")" >"$UP/port-forward"; }
stop_forward() {
  local pid started
  read -r pid started 2>/dev/null <"$UP/port-forward" || return 0
  [[ -z $started || $(start_time "$pid") != "$started" ]] || kill "$pid"
  rm -f "$UP/port-forward"
}
