//! Client of the Vercel Sandbox API, in both of its generations.
//!
//! * [`Stable`] is `/v1`: a sandbox is one VM with an id, and nothing survives its stop but explicit snapshots.
//! * [`Persistent`] is `/v2` with `/v3` for creation: a name is durable, VMs ("sessions") come and go beneath it.
//! * [`Machine`] is one VM of either: commands, files, stop, extension, network policy, snapshot.
//! * [`Durable`] is one name whose calls resume a VM that has stopped, once, for all callers together.
//!
//! # What is certain
//! A call that may be repeated is: see [`RetryPolicy`]. A call that starts something is repeated only when it is certain
//! that nothing began; otherwise it fails with [`Error::OutcomeUnknown`]. A stream of output that is cut is taken up
//! where it broke and a command is never run again. After five failures in a row the [breaker](Error::Unavailable)
//! answers at once for thirty seconds. No type of this crate prints a token, an environment value or an injected header.
//!
//! # Example
//! ```no_run
//! use vercel_sandbox::{Client, CommandRequest, Create, Credentials, Event, File};
//!
//! # async fn example() -> Result<(), vercel_sandbox::Error> {
//! let credentials = Credentials::token("token".into(), "team_1", "prj_1");
//! let client = Client::builder(credentials).build()?;
//! let durable = client.persistent().create(&Create { name: Some("box".to_owned()), ..Create::default() }).await?;
//! durable.write_files("/vercel/sandbox", &[File::new("hello.txt", "hello")]).await?;
//! let mut run = durable.run(&CommandRequest::new("cat", ["hello.txt"])).await?;
//! while let Some(event) = run.next().await? {
//!     if let Event::Ended(command) = event {
//!         assert_eq!(command.exit_code, Some(0));
//!     }
//! }
//! durable.stop().await?;
//! # Ok(())
//! # }
//! ```

mod archive;
mod breaker;
mod client;
mod clock;
mod commands;
mod credentials;
mod error;
mod execution;
mod lines;
mod machine;
mod persistent;
mod policy;
mod redacted;
mod stable;
mod transport;
mod values;

pub use archive::File;
pub use client::{Builder, Client};
pub use clock::{Clock, SystemClock};
pub use commands::CommandRequest;
pub use credentials::Credentials;
pub use error::Error;
pub use execution::{Event, Execution, Output};
pub use machine::Machine;
pub use persistent::{Durable, ListQuery, Persistent, Update};
pub use policy::{NetworkPolicy, Subnets};
pub use redacted::Redacted;
pub use stable::Stable;
pub use transport::RetryPolicy;
pub use values::{Command, Create, Page, Resources, Route, Sandbox, Session, Snapshot, Source, Status, Stopped};
