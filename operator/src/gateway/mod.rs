//! The way from people to workspaces: `operator gateway` (`docs/gateway.md`).
//!
//! Owns routing, authentication, authorisation, wakes, and the stream in both directions. Sees the cluster through the readers
//! of `cluster`, and of the controller nothing: both agree on the status of workspaces and on wake objects, whose rules
//! `hold` has.

mod access;
mod answer;
mod arguments;
mod body;
mod connections;
mod flight;
mod forward;
mod headers;
pub mod hold;
mod holding;
mod identity;
mod own;
mod recent;
mod request;
mod route;
mod serve;
mod session;
mod streams;
mod tokens;
mod upload;
mod upstream;
mod waking;

pub use arguments::GatewayArguments;
pub use identity::AUDIENCE;
pub use request::Gateway;
pub use serve::{GatewayError, Listeners, Settings, listen, run};
pub use upstream::POD_PORT;
