//! The options that say how commands run.
//!
//! Owns their words, defaults and bounds. Must not know what a mode or a limit does.

use std::str::FromStr;
use std::time::Duration;

use super::resolve::Check;
use super::{Arguments, OnUnavailable, RuntimeMode};
use crate::sandbox::Network;
use crate::sandbox::limits::WantedLimits;

/// Longest time of a command, unless it is set: an hour.
const DEFAULT_TIMEOUT_SECONDS: u64 = 3600;
/// A day: keeps instants in range.
const MAX_TIMEOUT_SECONDS: u64 = 86_400;
/// A shell, a program and one more: less lets nothing run.
const FEWEST_PROCESSES: usize = 4;
/// 16 MiB: less lets nothing run.
const LEAST_MEMORY: u64 = 16 << 20;
/// The smallest sensible file or output.
const LEAST_BYTES: u64 = 4096;

/// The named mode.
pub fn mode(check: &mut Check, arguments: &Arguments) -> Option<RuntimeMode> {
    let choices = [
        ("direct", RuntimeMode::Direct),
        ("landlock", RuntimeMode::Landlock),
        ("bubblewrap", RuntimeMode::Bubblewrap),
        ("local", RuntimeMode::Bubblewrap),
    ];
    // The other word of the product is known, so that it is refused by name instead of as a typing error.
    if arguments.mode.as_deref() == Some("vercel-sandbox") {
        check.fail(
            "--mode",
            "`vercel-sandbox` is not available in this version; use `bubblewrap`, `landlock` or `direct`",
        );
        return None;
    }
    check.choice("--mode", arguments.mode.as_ref(), &choices)
}

/// Network of commands.
pub fn network(check: &mut Check, arguments: &Arguments, mode: Option<RuntimeMode>) -> Network {
    let choices = [("inherit", Network::Inherit), ("isolated", Network::Isolated)];
    let name = "--sandbox-network";
    let network = check.choice(name, arguments.sandbox_network.as_ref(), &choices).unwrap_or(Network::Inherit);
    if network == Network::Isolated && mode == Some(RuntimeMode::Direct) {
        check.fail(
            name,
            "`isolated` needs `--mode bubblewrap` or `--mode landlock`; direct mode has no network of its own",
        );
    }
    network
}

/// What happens when the named mode cannot be had.
pub fn on_unavailable(check: &mut Check, arguments: &Arguments, mode: Option<RuntimeMode>) -> OnUnavailable {
    let choices = [("fail", OnUnavailable::Fail), ("degrade", OnUnavailable::Degrade)];
    let name = "--sandbox-on-unavailable";
    let action = check.choice(name, arguments.sandbox_on_unavailable.as_ref(), &choices).unwrap_or(OnUnavailable::Fail);
    if action == OnUnavailable::Degrade && mode != Some(RuntimeMode::Bubblewrap) {
        check.fail(name, "`degrade` is for `--mode bubblewrap` only");
    }
    action
}

/// Longest time that a command may ask for.
pub fn timeout(check: &mut Check, arguments: &Arguments) -> Duration {
    let name = "--limit-timeout-seconds";
    let seconds = at_least(check, name, arguments.limit_timeout_seconds.as_ref(), 1).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    if seconds > MAX_TIMEOUT_SECONDS {
        check.fail(name, format!("{seconds} is more than a day"));
    }
    Duration::from_secs(seconds.min(MAX_TIMEOUT_SECONDS))
}

/// The limits that are set.
pub fn limits(check: &mut Check, arguments: &Arguments) -> WantedLimits {
    let processes = arguments.limit_processes.as_ref();
    let workspace_processes = arguments.limit_workspace_processes.as_ref();
    let memory = arguments.limit_memory_bytes.as_ref();
    let workspace_memory = arguments.limit_workspace_memory_bytes.as_ref();
    WantedLimits {
        processes: at_least(check, "--limit-processes", processes, FEWEST_PROCESSES),
        memory_bytes: at_least(check, "--limit-memory-bytes", memory, LEAST_MEMORY),
        file_size_bytes: at_least(
            check,
            "--limit-file-size-bytes",
            arguments.limit_file_size_bytes.as_ref(),
            LEAST_BYTES,
        ),
        output_bytes: at_least(check, "--limit-output-bytes", arguments.limit_output_bytes.as_ref(), LEAST_BYTES),
        workspace_processes: at_least(check, "--limit-workspace-processes", workspace_processes, FEWEST_PROCESSES),
        workspace_memory_bytes: at_least(check, "--limit-workspace-memory-bytes", workspace_memory, LEAST_MEMORY),
    }
}

fn at_least<T: Copy + FromStr + PartialOrd + std::fmt::Display>(
    check: &mut Check,
    name: &str,
    text: Option<&String>,
    least: T,
) -> Option<T> {
    let number: T = check.parse(name, text, "a whole number")?;
    if number < least {
        check.fail(name, format!("{number} is less than {least}, with which nothing can run"));
    }
    Some(number)
}
