//! Privileges that no command keeps, also where the server runs as root.
//!
//! Owns the list. Must not know landlock, which some of these privileges reach around: `CAP_PERFMON` alone is enough to
//! read another process's environment and memory map, and a device node opens the disk below all files.

use rustix::thread::{CapabilitySet, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set};

/// What root in an ordinary container has and package managers need, without `CAP_MKNOD`.
pub const ORDINARY: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Takes all others from what programs started by the calling thread can have. A thread without any has nothing to do.
pub fn keep_on_this_thread(kept: CapabilitySet) -> rustix::io::Result<()> {
    let held = capabilities(None)?.permitted;
    if held.is_empty() {
        return Ok(());
    }
    clear_ambient_capability_set()?;
    held.difference(kept).iter().try_for_each(remove_capability_from_bounding_set)
}
