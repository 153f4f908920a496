# Builds the programs and their images. Knows nothing of clusters. Sourced after common.sh.
# PROFILE=dev takes the faster build of a developer; what is measured and shipped is release.

PROFILE=${PROFILE:-release}
build_programs() { cargo build --locked --profile "$PROFILE" -p operator -p agent-server -p fakes --bins; }
build_images() { images/build --profile "$PROFILE"; }
