//! What the server and the supervisor of one command say to each other.
//!
//! Owns the supervisor's arguments and the two message directions on its standard input, which is a socket pair.
//! Must not know how either side acts on a message.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::landlock_layer::LayerRules;
use super::limits::CommandLimits;

/// First argument that turns the server's binary into the supervisor of one command.
pub const SUBCOMMAND: &str = "sandbox-exec";

/// Longest command text. The kernel takes at most 128 KiB for one argument, its final NUL included (`MAX_ARG_STRLEN`).
pub const MAX_COMMAND_BYTES: usize = 128 * 1024 - 1;

/// Everything the supervisor needs besides the command's text; its second argument, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Absolute path of bash.
    pub shell: PathBuf,
    /// Rules of the landlock layer; without it the command runs with the server's own rights.
    pub layer: Option<LayerRules>,
    /// Limits of the tree.
    pub limits: CommandLimits,
}

/// Server to supervisor, one byte each. The end of the stream means that the server is gone.
pub const END_TREE: u8 = b'E';

/// Supervisor to server, one JSON document per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The shell runs.
    Started,
    /// The shell could not be started; the supervisor exits.
    Failed(String),
    /// A limit was passed; the tree is being ended.
    LimitExceeded(String),
    /// The shell is gone.
    ShellEnded {
        /// How.
        status: ShellStatus,
        /// Whether other processes of the tree still run.
        others_run: bool,
    },
    /// Nothing of the tree runs any more; the supervisor exits.
    TreeEnded,
    /// This many processes did not go although they were killed; the supervisor gives up and exits.
    TreeStuck(usize),
}

/// How the shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShellStatus {
    /// By itself.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_line() {
        let reports = [
            Report::Started,
            Report::Failed("no such file\nor directory".into()),
            Report::ShellEnded { status: ShellStatus::Signaled(9), others_run: true },
            Report::TreeStuck(3),
        ];
        for report in reports {
            let line = serde_json::to_string(&report).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
    }
}
