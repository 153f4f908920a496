# Shared by all scripts: folders, messages, timed steps, clean-up, and the tools of the test cluster.
# Knows nothing of what a script does with them. Sourced, never run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CLUSTER_COMMAND=$ROOT/tests/cluster/cluster
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
LOGS=$ROOT/target/logs/$(basename "$0")
OPERATOR_NAMESPACE=agent-workspace-system
DEMO_NAMESPACE=agent-demo
mkdir -p "$LOGS"
cd "$ROOT" || exit 1

# Where installers put tools: a login shell finds them there, a script may not. Named before they exist, since the set-up
# may make them while a script runs.
export PATH=$PATH:$HOME/.cargo/bin:/usr/local/go/bin

say() { printf '%s\n' "$*"; }
fail() { printf '\n%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# --- clean-up -----------------------------------------------------------------------------------------------------
# on_exit COMMAND: run at every end of the script (success, failure, Ctrl-C), the newest first.
EXIT_COMMANDS=() RUNNING_STEP=''
on_exit() { EXIT_COMMANDS+=("$*"); }
leave() {
  local code=$? index
  trap - EXIT INT TERM HUP
  stop_step
  for ((index = ${#EXIT_COMMANDS[@]} - 1; index >= 0; index--)); do eval "${EXIT_COMMANDS[index]}" || true; done
  exit "$code"
}
# A step runs in a process group of its own, so that Ctrl-C can end all of it: its children too.
stop_step() {
  [[ -n $RUNNING_STEP ]] || return 0
  kill -TERM -- "-$RUNNING_STEP" 2>/dev/null || true
  wait "$RUNNING_STEP" 2>/dev/null || true
  # What it started may have to tidy up: a cluster takes down what it has begun.
  local end=$((SECONDS + 60))
  while kill -0 -- "-$RUNNING_STEP" 2>/dev/null; do
    ((SECONDS < end)) || { say "still running: process group $RUNNING_STEP"; break; }
    sleep 0.1
  done
  RUNNING_STEP=''
}
trap leave EXIT
trap 'echo; say "stopped"; exit 130' INT
trap 'exit 143' TERM HUP

# --- steps --------------------------------------------------------------------------------------------------------
seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", to - from }'; }

# The likely cause in a log: the last line that reads like an error, else the last line with text.
cause_in() {
  local line
  line=$(grep -aiE '(^|[^a-z])(error|failed|failure|cannot|refused|denied|panicked|not found|timed out|no space)' "$1" |
    grep -avE '^ *(test result|error: could not compile|error: test failed|make)|0 failed' | tail -n 1)
  [[ -n $line ]] || line=$(grep -a '[^[:space:]]' "$1" | tail -n 1)
  printf '%s' "${line:0:400}"
}

# run_step LABEL COMMAND…: runs a command with its output in a log, shows progress and the time it took. Sets STEP_CODE,
# STEP_LOG and STEP_TIME and always answers 0. Never call it in a condition: there, bash ignores `set -e` in the command too.
run_step() {
  local label=$1 started=$EPOCHREALTIME next=60 begin=$SECONDS channel
  shift
  STEP_LOG=$LOGS/$(tr -cs 'a-zA-Z0-9\n' '-' <<<"$label").log
  printf '%-58s ' "$label"
  # The command reports its exit code through a pipe: waiting on it needs no further process, and a command that ends
  # without a report (killed, no memory) has failed.
  mkfifo "$LOGS/report.$$" && exec {channel}<>"$LOGS/report.$$" && rm "$LOGS/report.$$"
  # Job control gives the command a process group of its own.
  set -m
  (trap 'echo $? >&"$channel"' EXIT; set -e; "$@") </dev/null >"$STEP_LOG" 2>&1 &
  RUNNING_STEP=$!
  set +m
  STEP_CODE=''
  until read -r -t 1 -u "$channel" STEP_CODE; do
    kill -0 "$RUNNING_STEP" 2>/dev/null || { read -r -t 1 -u "$channel" STEP_CODE || STEP_CODE=137; break; }
    if [[ -t 1 ]]; then
      printf '\r%-58s %4d s' "$label" $((SECONDS - begin))
    elif ((SECONDS - begin >= next)); then
      printf '… %d s ' $((SECONDS - begin)); next=$((next + 60))
    fi
  done
  exec {channel}>&-
  wait "$RUNNING_STEP" 2>/dev/null || true
  RUNNING_STEP=''
  STEP_TIME=$(seconds_since "$started")
  [[ ! -t 1 ]] || printf '\r%-58s ' "$label"
  if ((STEP_CODE == 0)); then say "ok      $STEP_TIME"; else say "FAILED  $STEP_TIME"; fi
}

# step LABEL COMMAND…: as run_step; a failure ends the script with one paragraph.
step() {
  run_step "$@"
  ((STEP_CODE == 0)) || fail "\"$1\" failed: $(cause_in "$STEP_LOG")
The whole log: $STEP_LOG"
}

# --- tools of the test cluster ------------------------------------------------------------------------------------
cluster() { "$CLUSTER_COMMAND" "$@"; }

# Puts kubectl and helm of the pinned versions in front of PATH.
use_cluster_tools() {
  local kubectl helm
  kubectl=$(cluster bin kubectl) && helm=$(cluster bin helm) || return 1
  PATH=$(dirname "$kubectl"):$(dirname "$helm"):$PATH
  export PATH KUBECTL=$kubectl HELM=$helm
}

# test_cluster NAME [ARGUMENTS…]: starts a cluster that ends with this script. Its name holds the process id, so that two
# runs do not meet; the record lets `make clean-cluster` find it should this script be killed.
test_cluster() {
  mkdir -p "$ROOT/target/clusters"
  touch "$ROOT/target/clusters/$1"
  cluster start --name "$@"
}
end_test_cluster() { cluster stop --name "$1" >/dev/null && rm -f "$ROOT/target/clusters/$1"; }

# wait_until SECONDS WHAT COMMAND…: looks five times a second.
wait_until() {
  local limit=$1 what=$2 end
  end=$((SECONDS + $1)); shift 2
  until "$@"; do
    ((SECONDS < end)) || { echo "error: $what: not within $limit s" >&2; return 1; }
    sleep 0.2
  done
}
