# Puts the products on the cluster of KUBECONFIG: chart, and the scripted model for those who have no model key.
# Knows nothing of how the cluster came to be. Sourced after common.sh.

# The ranges of test clusters are not public, and such ranges are always excluded; CLUSTER_CIDRS names others, as JSON.
IMAGE_REPOSITORY=${IMAGE_REPOSITORY:-agent-workspace-operator}
HELM_VALUES=(--set "image.repository=$IMAGE_REPOSITORY/operator" --set image.tag=dev
  --set "agentServer.image.repository=$IMAGE_REPOSITORY/agent-server" --set agentServer.image.tag=dev
  --set "networkPolicy.modelNamespaces={$DEMO_NAMESPACE}" # the model double
  --set-json "networkPolicy.clusterCIDRs=${CLUSTER_CIDRS:-[]}")

# install_chart [HELM ARGUMENTS…]
install_chart() {
  # The tag stays the same when the image changes: the digest as an annotation makes the pods be replaced then, and only then.
  helm upgrade --install agent-workspace-operator "$ROOT/charts/agent-workspace-operator" \
    --namespace "$OPERATOR_NAMESPACE" --create-namespace "${HELM_VALUES[@]}" \
    --set-string "podAnnotations.agents\.boring\.dev/image-digest=$(image_digest operator)" "$@" || return 1
  kubectl -n "$OPERATOR_NAMESPACE" rollout status deployment/agent-workspace-operator --timeout=120s || {
    explain_pods "$OPERATOR_NAMESPACE"; return 1
  }
}

# install_chart_with_gateway [HELM ARGUMENTS…]: the same with a gateway at agents.test, a name that only requests hold.
install_chart_with_gateway() {
  local ranges
  ranges=$(kubectl get nodes -o 'jsonpath={.items[*].spec.podCIDRs[*]}') || return 1
  install_chart --set gateway.enabled=true --set gateway.domain=agents.test --set "gateway.podCIDRs={${ranges// /,}}" \
    --set-string "gateway.podAnnotations.agents\.boring\.dev/image-digest=$(image_digest operator)" "$@" || return 1
  kubectl -n "$OPERATOR_NAMESPACE" rollout status deployment/agent-workspace-gateway --timeout=60s || {
    explain_pods "$OPERATOR_NAMESPACE"; return 1
  }
}

# The digest of the image that images/build made last.
image_digest() { cat "$ROOT/target/images/$1.digest"; }

install_model_double() {
  kubectl create namespace "$DEMO_NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - &&
    sed "s|@DIGEST@|$(image_digest model-double)|; s|image: agent-workspace-operator/|image: $IMAGE_REPOSITORY/|" "$ROOT/tests/fakes/model-double.yaml" |
      kubectl -n "$DEMO_NAMESPACE" apply -f - &&
    kubectl -n "$DEMO_NAMESPACE" rollout status deployment/model-double --timeout=60s || {
      explain_pods "$DEMO_NAMESPACE"; return 1
    }
}

# What a person would look at when pods do not come up.
explain_pods() {
  kubectl -n "$1" get pods -o wide
  kubectl -n "$1" get events --sort-by=.lastTimestamp | tail -n 15
  local pod
  for pod in $(kubectl -n "$1" get pods -o name); do
    echo "--- log of $pod"; kubectl -n "$1" logs "$pod" --tail=20 --all-containers
  done
}
