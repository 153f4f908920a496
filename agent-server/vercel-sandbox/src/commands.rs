//! What runs in a VM, as it is sent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::redacted::Redacted;

/// What runs. There is no shell: name one if you need one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandRequest {
    /// Program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Folder, by default the VM's.
    pub cwd: Option<String>,
    /// Environment, over that of the sandbox.
    pub env: BTreeMap<String, Redacted>,
    /// As root.
    pub sudo: bool,
    /// Milliseconds after which the VM kills it; not in `/v1`.
    pub timeout: Option<u64>,
}

impl CommandRequest {
    /// A program with arguments.
    pub fn new<A: Into<String>>(program: impl Into<String>, args: impl IntoIterator<Item = A>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// As it is sent. `/v1` knows neither a time limit nor output in the answer.
    pub(crate) fn body(&self, first_generation: bool, stream: bool) -> Value {
        let mut body = json!({"command": self.program, "args": self.args, "env": self.env, "sudo": self.sudo});
        if let Some(cwd) = &self.cwd {
            body["cwd"] = json!(cwd);
        }
        if let Some(timeout) = self.timeout.filter(|_| !first_generation) {
            body["timeout"] = json!(timeout);
        }
        if stream {
            body["wait"] = json!(true);
            body["logs"] = json!(true);
        }
        body
    }
}
