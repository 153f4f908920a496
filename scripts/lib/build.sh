# Builds the programs and their images. Knows nothing of clusters. Sourced after common.sh.
# PROFILE=dev takes the faster build of a developer; what is measured and shipped is release.

PROFILE=${PROFILE:-release}
build_programs() { cargo build --locked --profile "$PROFILE" -p operator -p agent-server -p fakes --bins; }
build_images() { images/build --profile "$PROFILE"; }

# build_with COMMAND…: the programs and their images, and beside them what COMMAND makes. Each waits for the network and
# for single-threaded steps at other times than the others, so that both cores of a small machine stay busy.
build_with() {
  local pids=() logs=() index failed=0
  images/build --base >"$LOGS/base-layers.log" 2>&1 & pids+=($!) logs+=("$LOGS/base-layers.log")
  "$@" >"$LOGS/beside.log" 2>&1 & pids+=($!) logs+=("$LOGS/beside.log")
  build_programs || failed=1
  for index in "${!pids[@]}"; do wait "${pids[index]}" || { failed=1; cat "${logs[index]}"; }; done
  ((failed == 0)) || return 1
  build_images
}
