//! Direct mode: a command is a plain process tree of the server's user, behind the landlock layer where the kernel has it.
//!
//! Owns the rules of this mode. Must not know how a command is started, tools, HTTP or the workspace's files.

use super::landlock_layer::{LayerError, LayerRules};
use super::local::{LocalSandbox, LocalSettings, Place};
use super::probe;
use super::restrictions::Restrictions;
use super::{IsolationKind, Network, SandboxError};

/// Starts the sandbox and finds out by trying what the layer really keeps from commands. Without the layer (missing in
/// the kernel, or `use_landlock` false) the isolation says `None`.
pub async fn start(settings: LocalSettings, use_landlock: bool) -> Result<LocalSandbox, SandboxError> {
    let mut writable = settings.writable.clone();
    writable.push(settings.root.clone());
    let rules = LayerRules { readable: vec!["/".into()], hidden: settings.hidden.clone(), writable };
    let enforcement = if use_landlock {
        probe::enforcement(rules.clone()).await
    } else {
        Err(LayerError::NotEnforced("switched off by the settings"))
    };
    let files = enforcement.is_ok().then(|| rules.clone());
    let has_layer = files.is_some();
    let restrictions = Restrictions { files, system_calls: None, no_capabilities: false };
    let place = Place::Machine { program: settings.program.clone() };
    let unprobed = probe::not_probed(IsolationKind::None, Network::Inherit);
    let mut sandbox = LocalSandbox::new(&settings, place, restrictions, unprobed)?;
    sandbox.isolation = probe::direct(&sandbox, enforcement, &rules.hidden).await?;
    if has_layer {
        sandbox.isolation.probes.extend(rules.narrowed().map(|folder| {
            format!(
                "{}: commands cannot add files directly in it, because something hidden lies below",
                folder.display()
            )
        }));
    }
    Ok(sandbox)
}
