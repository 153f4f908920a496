//! Entry point.

fn main() {
    agent_server::sandbox::helper::run_if_requested();
}
