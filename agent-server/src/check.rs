//! `agent-server check-sandbox`: builds the configured sandbox and attacks it from inside, on the machine or in the pod
//! where it would serve.
//!
//! Owns what is set up to be attacked and the report. Must not know how a sandbox is built; `lib.rs` hands it in.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::sandbox::conformance::{ATTACKS, Listeners, NETWORK_ATTACKS, Target, failed_controls, observe};
use crate::sandbox::limits::WantedLimits;
use crate::sandbox::{Isolation, Sandbox, SandboxError};

/// Limits under which attacks that use things up end within seconds.
pub const LIMITS: WantedLimits = WantedLimits {
    processes: Some(64),
    memory_bytes: Some(128 << 20),
    file_size_bytes: Some(64 << 20),
    output_bytes: Some(64 << 20),
    workspace_processes: None,
    workspace_memory_bytes: None,
};
/// Set this to a text that stands nowhere else, so that the attacks on the environment have something to find.
pub const PLANTED: &str = "PLANTED_API_KEY";

/// One attack and its end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    attack: &'static str,
    observed: String,
    as_promised: bool,
}

/// What came out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Runtime mode.
    mode: &'static str,
    /// What the sandbox says of itself.
    isolation: Isolation,
    /// Commands that must work and did not: attacks that are refused with them prove nothing.
    failed_controls: Vec<&'static str>,
    attacks: Vec<Row>,
    network: Vec<Row>,
}

impl CheckReport {
    /// Everything ended as promised.
    pub fn is_as_promised(&self) -> bool {
        self.failed_controls.is_empty() && self.attacks.iter().chain(&self.network).all(|row| row.as_promised)
    }
}

/// What is attacked, as long as this value lives.
pub struct Bait {
    target: Target,
    listeners: Listeners,
    folders: [PathBuf; 2],
    _held: (OwnedFd, UnixListener, UnixListener, std::net::TcpListener),
}

impl Bait {
    /// Sets it up in the server's state folder and, for the service and the foreign file, in a folder of its own.
    /// `server` is the process that the attacks are aimed at.
    pub fn new(state_dir: &std::path::Path, outside: &std::path::Path, server: u32) -> io::Result<Self> {
        let own = format!("attacked-{}", std::process::id());
        let (state, foreign) = (state_dir.join(&own), outside.join(&own));
        for folder in [&state, &foreign] {
            crate::storage::make_private_dir(folder)?;
        }
        let (session, key) = (state.join("session.jsonl"), state.join("key"));
        for file in [&session, &key, &foreign.join("notes")] {
            crate::storage::private_file()
                .write(true)
                .create(true)
                .truncate(true)
                .open(file)?
                .write_all(b"secret\n")?;
        }
        // Deliberately without close-on-exec: what a library may leave open.
        let descriptor = rustix::fs::open(&key, OFlags::RDONLY, Mode::empty())?;
        let abstract_listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&own)?)?;
        let path_socket = foreign.join("service");
        let service = UnixListener::bind(&path_socket)?;
        let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
        let listeners = Listeners { tcp: tcp.local_addr()?.port(), udp: echo()? };
        let target = Target {
            server,
            process_namespace: std::fs::read_link("/proc/self/ns/pid")?.display().to_string(),
            state: state.clone(),
            key,
            foreign: foreign.join("notes"),
            descriptor: descriptor.as_raw_fd(),
            abstract_socket: own,
            path_socket,
            planted: std::env::var(PLANTED).unwrap_or_else(|_| "nothing was planted".into()),
        };
        Ok(Self { target, listeners, folders: [state, foreign], _held: (descriptor, abstract_listener, service, tcp) })
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        for folder in &self.folders {
            // What is left of it is only bait.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Sends datagrams back until the process ends.
fn echo() -> io::Result<u16> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let port = socket.local_addr()?.port();
    std::thread::spawn(move || {
        let mut bytes = [0; 16];
        while let Ok((count, from)) = socket.recv_from(&mut bytes) {
            // Whoever sent it may be gone.
            let _ = socket.send_to(&bytes[..count], from);
        }
    });
    Ok(port)
}

/// Makes every attack.
pub async fn run(mode: &'static str, sandbox: &dyn Sandbox, bait: &Bait) -> Result<CheckReport, SandboxError> {
    let isolation = sandbox.isolation();
    let failed_controls = failed_controls(sandbox).await?;
    let mut attacks = Vec::new();
    for attack in ATTACKS {
        let outcome = observe(sandbox, attack, &bait.target).await?;
        let as_promised = attack.is_as_promised(isolation.kind, outcome);
        attacks.push(Row { attack: attack.name, observed: outcome.to_string(), as_promised });
    }
    let mut network = Vec::new();
    for attack in NETWORK_ATTACKS {
        let outcome = attack.observe(sandbox, &bait.listeners).await?;
        let as_promised = attack.is_as_promised(isolation.network, outcome);
        network.push(Row { attack: attack.name, observed: outcome.to_string(), as_promised });
    }
    crate::sandbox::conformance::tidy(sandbox).await?;
    sandbox.stop_all().await;
    Ok(CheckReport { mode, isolation, failed_controls, attacks, network })
}
