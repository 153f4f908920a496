# Builds the programs and their images. Knows nothing of clusters. Sourced after common.sh.

build_programs() { cargo build --locked --release -p operator -p agent-server -p fakes --bins; }
build_images() { images/build; }
