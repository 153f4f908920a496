# Which cluster `make up` uses, and what differs between them. Sourced after common.sh.
#
#   CLUSTER=current   the current context of kubectl; asked about first when it is not on this machine
#   CLUSTER=kind      a kind cluster `agent-workspace`
#   CLUSTER=local     the one-node cluster of tests/cluster, named `up`
#   unset             what ran last; else kind where a container engine really answers, else local
#
# The choice is kept in target/up/cluster, so that `make down` stops what `make up` started.

UP=$ROOT/target/up
LOCAL_NAME=up
KIND_NAME=agent-workspace
# Kind as a Go module: its own command is the only thing needed from it.
KIND_MODULE=sigs.k8s.io/kind@v0.30.0

engine_works() { timeout 10 docker info >/dev/null 2>&1; }

choose_cluster() {
  local before=''
  mkdir -p "$UP"
  [[ -r $UP/cluster ]] && before=$(<"$UP/cluster")
  CHOICE=${CLUSTER:-$before}
  case $CHOICE in
    current | kind | local) ;;
    '') if engine_works; then CHOICE=kind; else CHOICE=local; fi ;;
    *) fail "CLUSTER is current, kind or local, not $CHOICE" ;;
  esac
  [[ -z $before || $before == "$CHOICE" ]] ||
    fail "make up runs on the cluster \"$before\" already; run make down before you choose another one"
  [[ $CHOICE != kind ]] || engine_works || fail "CLUSTER=kind needs a container engine, and docker info fails"
  [[ $CHOICE != local || $EUID == 0 ]] ||
    fail "the one-node cluster needs root (mounts, network namespaces): run make up as root, or choose CLUSTER=current"
}

# A context that points elsewhere is touched only after a yes, typed or given as CONFIRM_CONTEXT=NAME.
confirm_current_context() {
  local context server host answer
  command -v kubectl >/dev/null || fail "CLUSTER=current needs kubectl on the PATH"
  context=$(kubectl config current-context 2>/dev/null) || fail "CLUSTER=current: kubectl has no current context"
  server=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
  host=${server#*://}; host=${host%%/*}; host=${host%:*}
  case $host in
    127.* | localhost | '[::1]') return 0 ;;
  esac
  [[ ${CONFIRM_CONTEXT:-} != "$context" ]] || return 0
  [[ -t 0 ]] || fail "the context \"$context\" ($server) is not on this machine; to install there, set CONFIRM_CONTEXT=$context"
  read -r -p "Install the operator and a demo into the context \"$context\" ($server)? Type its name to go on: " answer
  [[ $answer == "$context" ]] || fail "nothing was changed"
}

kind_command() { command -v kind || { GOBIN=$UP/bin go install "$KIND_MODULE" && echo "$UP/bin/kind"; }; }

start_cluster() {
  case $CHOICE in
    local) cluster start --name "$LOCAL_NAME" ${ANTHROPIC_API_KEY:+--internet} ;;
    kind)
      local kind
      kind=$(kind_command)
      "$kind" get clusters 2>/dev/null | grep -qx "$KIND_NAME" ||
        "$kind" create cluster --name "$KIND_NAME" --wait 120s --kubeconfig "$UP/kubeconfig"
      "$kind" export kubeconfig --name "$KIND_NAME" --kubeconfig "$UP/kubeconfig"
      ;;
    current) kubectl version ;;
  esac
  echo "$CHOICE" >"$UP/cluster"
}

use_kubeconfig() {
  case $CHOICE in
    local) KUBECONFIG=$(cluster kubeconfig --name "$LOCAL_NAME") ;;
    kind) KUBECONFIG=$UP/kubeconfig ;;
    current) return 0 ;;
  esac
  export KUBECONFIG
}

# Puts the archives where the nodes find them.
load_images() {
  local context
  case $CHOICE in
    local) cluster load-image --name "$LOCAL_NAME" "$@" ;;
    kind) load_with "$(kind_command)" load image-archive --name "$KIND_NAME" -- "$@" ;;
    current)
      context=$(kubectl config current-context)
      case $context in
        kind-*) load_with "$(kind_command)" load image-archive --name "${context#kind-}" -- "$@" ;;
        minikube) load_with minikube image load -- "$@" ;;
        k3d-*) load_with k3d image import --cluster "${context#k3d-}" -- "$@" ;;
        *)
          # Set by install.sh when the user did not.
          [[ $IMAGE_REPOSITORY != agent-workspace-operator ]] || {
            echo "error: images cannot be put on the nodes of \"$context\" from here. Build images/*.Containerfile, push them to a registry that the nodes reach, and run again with IMAGE_REPOSITORY=REGISTRY/PATH (images operator, agent-server and model-double, tag dev)"
            return 1
          }
          ;;
      esac
      ;;
  esac
}

# load_with COMMAND… -- ARCHIVE…: one call for each archive.
load_with() {
  local command=() archive
  while [[ $1 != -- ]]; do command+=("$1"); shift; done
  shift
  for archive; do "${command[@]}" "$archive"; done
}
