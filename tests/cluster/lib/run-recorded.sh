# Writes the id and start time of this process to a file, then becomes the
# command: run-recorded.sh FILE COMMAND...
# The record exists before the command does anything, so nothing is ever started
# that a later `stop` cannot find. CGROUP_PROCS may list cgroup.procs files to join.
set -euo pipefail
record=$1
shift
text=$(<"/proc/$$/stat")
text=${text##*) }
read -ra fields <<<"$text"
printf '%s %s\n' "$$" "${fields[19]}" >"$record.new"
mv "$record.new" "$record"
for file in ${CGROUP_PROCS:-}; do
    echo $$ >"$file"
done
unset CGROUP_PROCS
exec "$@"
