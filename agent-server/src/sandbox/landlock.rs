//! Landlock mode: a command reads the system, writes the workspace and the temporary folder, and is refused dangerous
//! system calls. Needs no rights, so it works in pods of the level `restricted`.
//!
//! Owns the rules of this mode and what it asks of the kernel. Must not know how a command is started.

use std::path::{Path, PathBuf};

use super::landlock_layer::{Enforcement, LayerRules, minimum_is_met};
use super::local::{LocalSandbox, LocalSettings, Place};
use super::probe;
use super::restrictions::Restrictions;
use super::system_calls::SystemCallFilter;
use super::{IsolationKind, Network, SandboxError, system_folders};

/// What programs need besides the system's folders: processes, processors and the container's limits.
const KERNEL_FOLDERS: [&str; 3] = ["/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup"];

/// Starts the sandbox. It is refused if the kernel does not enforce what the mode promises, or if a try from inside
/// succeeds that must not.
pub async fn start(settings: LocalSettings, network: Network) -> Result<LocalSandbox, SandboxError> {
    let root = settings.root.clone();
    let settings = system_folders::with_visible_path(settings, root);
    let rules = rules(&settings);
    let enforcement = probe::enforcement(rules.clone()).await.map_err(|error| {
        let remedy = "needs Linux 5.13 or newer with `landlock` among its security modules (`lsm=`); use another mode";
        SandboxError::Unavailable(format!("landlock mode: {error}; {remedy}"))
    })?;
    if !minimum_is_met() {
        let message = "landlock mode: this kernel does not guard truncation, so commands could empty any file of the \
                       server's user; needs Linux 6.2 or newer";
        return Err(SandboxError::Unavailable(message.into()));
    }
    let restrictions = Restrictions {
        files: Some(rules),
        system_calls: Some(SystemCallFilter { sockets: network }),
        no_capabilities: true,
    };
    let place = Place::Machine { program: settings.program.clone() };
    let unprobed = probe::not_probed(IsolationKind::Landlock, network);
    let mut sandbox = LocalSandbox::new(&settings, place, restrictions, unprobed)?;
    let first = match enforcement {
        Enforcement::Full => "landlock is enforced in full",
        Enforcement::Partial => {
            "the kernel is older than Linux 6.12: signals and abstract sockets of other processes are not guarded"
        }
    };
    let signals_are_scoped = enforcement == Enforcement::Full;
    sandbox.isolation = probe::isolated(&sandbox, vec![first.into()], &settings.hidden, signals_are_scoped).await?;
    Ok(sandbox)
}

fn rules(settings: &LocalSettings) -> LayerRules {
    let system = system_folders::existing().map(Path::to_path_buf);
    let kernel = KERNEL_FOLDERS.iter().map(PathBuf::from).filter(|folder| folder.exists());
    let readable = system.chain(kernel).chain(settings.readable.iter().cloned()).collect();
    let mut writable = settings.writable.clone();
    writable.push(settings.root.clone());
    LayerRules { readable, hidden: settings.hidden.clone(), writable }
}
