//! Attacks on the network from inside a command.
//!
//! Owns what is tried. Under `Isolated` every one is refused; under `Inherit` those on the machine itself succeed.

use super::{Outcome, attempt};
use crate::sandbox::{Network, Sandbox, SandboxError};

/// Who answers on the machine.
#[derive(Debug, Clone, Copy)]
pub struct Listeners {
    /// A port of 127.0.0.1 that takes connections.
    pub tcp: u16,
    /// A port of 127.0.0.1 that sends back what it gets in datagrams.
    pub udp: u16,
}

/// One attack.
pub struct NetworkAttack {
    /// What it is, for the table.
    pub name: &'static str,
    attempt: fn(&Listeners) -> String,
    leaves_the_machine: bool,
}

/// Every attack.
pub const NETWORK_ATTACKS: &[NetworkAttack] = &[
    NetworkAttack {
        name: "connect to the server's machine by TCP",
        attempt: |at| format!(": > /dev/tcp/127.0.0.1/{}", at.tcp),
        leaves_the_machine: false,
    },
    NetworkAttack {
        name: "exchange datagrams with the server's machine",
        attempt: |at| {
            let program = "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); \
                           s.sendto(b\"x\", (\"127.0.0.1\", int(sys.argv[1]))); s.recv(1)";
            format!("python3 -c '{program}' {}", at.udp)
        },
        leaves_the_machine: false,
    },
    NetworkAttack {
        name: "reach an outer address by IPv4",
        attempt: |_| ": > /dev/udp/192.0.2.1/9".into(),
        leaves_the_machine: true,
    },
    NetworkAttack {
        name: "reach an outer address by IPv6",
        attempt: |_| ": > /dev/udp/2001:db8::1/9".into(),
        leaves_the_machine: true,
    },
    NetworkAttack {
        name: "ask for a name",
        attempt: |_| "timeout 5 getent ahosts example.com".into(),
        leaves_the_machine: true,
    },
    NetworkAttack {
        name: "reach the cloud's metadata service",
        attempt: |_| "timeout 2 bash -c ': > /dev/tcp/169.254.169.254/80'".into(),
        leaves_the_machine: true,
    },
];

impl NetworkAttack {
    /// Whether it depends on more than this machine.
    pub fn leaves_the_machine(&self) -> bool {
        self.leaves_the_machine
    }

    /// Whether an observed outcome is what the setting promises.
    pub fn is_as_promised(&self, network: Network, observed: Outcome) -> bool {
        match network {
            Network::Isolated => observed == Outcome::Refused,
            Network::Inherit => self.leaves_the_machine || observed == Outcome::Possible,
        }
    }

    /// Makes the attack and tells how it ended.
    pub async fn observe(&self, sandbox: &dyn Sandbox, at: &Listeners) -> Result<Outcome, SandboxError> {
        attempt(sandbox, &(self.attempt)(at)).await
    }
}
