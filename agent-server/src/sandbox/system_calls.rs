//! The filter of system calls that commands of isolated modes run under.
//!
//! Owns the list of what is refused and why, and its enforcement on the calling thread. Must not know modes.
//!
//! The filter names what is refused and lets everything else pass: a list of what is allowed would break programs with
//! every kernel, and the dangerous calls are few and known. A refused call fails with `EPERM`, as it does without rights.
//! Programs for another processor family (32 bits) are ended, since their calls have other numbers.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};

use super::Network;

/// Why the filter is not in force.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The processor is none of those that the filter knows.
    #[error("the filter of system calls does not know this processor")]
    Processor,
    /// The rules make no program.
    #[error("the filter of system calls is not valid: {0}")]
    Rules(#[from] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error("the kernel refused the filter of system calls (seccomp): {0}")]
    Refused(#[from] seccompiler::Error),
}

/// A filter, by what it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCallFilter {
    /// `Isolated` refuses internet sockets too, loopback included: for modes that have no network namespace.
    pub sockets: Network,
}

/// System calls that are always refused, by one reason each.
pub const REFUSED: &[(&str, &[(&str, i64)])] = &[
    (
        "mounts: a mount of its own could show or cover files behind the rules",
        &[
            ("mount", libc::SYS_mount),
            ("umount2", libc::SYS_umount2),
            ("pivot_root", libc::SYS_pivot_root),
            ("move_mount", libc::SYS_move_mount),
            ("open_tree", libc::SYS_open_tree),
            ("fsopen", libc::SYS_fsopen),
            ("fsconfig", libc::SYS_fsconfig),
            ("fsmount", libc::SYS_fsmount),
            ("fspick", libc::SYS_fspick),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("open_tree_attr", OPEN_TREE_ATTR),
            ("chroot", libc::SYS_chroot),
            ("swapon", libc::SYS_swapon),
            ("swapoff", libc::SYS_swapoff),
            ("quotactl", libc::SYS_quotactl),
            ("quotactl_fd", libc::SYS_quotactl_fd),
        ],
    ),
    ("joining a namespace: it could be one outside of the sandbox", &[("setns", libc::SYS_setns)]),
    (
        "keyrings: they belong to the user, not to the sandbox, and may hold the user's keys",
        &[("add_key", libc::SYS_add_key), ("request_key", libc::SYS_request_key), ("keyctl", libc::SYS_keyctl)],
    ),
    (
        "bpf and performance counters: they see the whole kernel, and most escapes begin there",
        &[("bpf", libc::SYS_bpf), ("perf_event_open", libc::SYS_perf_event_open)],
    ),
    (
        "other processes' memory and descriptors: the supervisor runs with more rights",
        &[
            ("ptrace", libc::SYS_ptrace),
            ("process_vm_readv", libc::SYS_process_vm_readv),
            ("process_vm_writev", libc::SYS_process_vm_writev),
            ("process_madvise", libc::SYS_process_madvise),
            ("pidfd_getfd", libc::SYS_pidfd_getfd),
            ("kcmp", libc::SYS_kcmp),
        ],
    ),
    (
        "io_uring: its operations pass by this filter",
        &[
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("io_uring_enter", libc::SYS_io_uring_enter),
            ("io_uring_register", libc::SYS_io_uring_register),
        ],
    ),
    (
        "kernel modules and kexec: code in the kernel",
        &[
            ("init_module", libc::SYS_init_module),
            ("finit_module", libc::SYS_finit_module),
            ("delete_module", libc::SYS_delete_module),
            ("kexec_load", libc::SYS_kexec_load),
            #[cfg(target_arch = "x86_64")]
            ("kexec_file_load", libc::SYS_kexec_file_load),
        ],
    ),
    (
        "the clock: it is the whole machine's",
        &[
            ("settimeofday", libc::SYS_settimeofday),
            ("clock_settime", libc::SYS_clock_settime),
            ("clock_adjtime", libc::SYS_clock_adjtime),
            ("adjtimex", libc::SYS_adjtimex),
        ],
    ),
    (
        "the machine: names, reboot, accounting, kernel log, terminals of others",
        &[
            ("sethostname", libc::SYS_sethostname),
            ("setdomainname", libc::SYS_setdomainname),
            ("reboot", libc::SYS_reboot),
            ("acct", libc::SYS_acct),
            ("syslog", libc::SYS_syslog),
            ("vhangup", libc::SYS_vhangup),
        ],
    ),
    (
        "files by handle: they pass by every folder's permissions",
        &[("open_by_handle_at", libc::SYS_open_by_handle_at), ("name_to_handle_at", libc::SYS_name_to_handle_at)],
    ),
    ("faults handled in user space: they hold a racing kernel still", &[("userfaultfd", libc::SYS_userfaultfd)]),
    #[cfg(target_arch = "x86_64")]
    ("ports of devices", &[("iopl", libc::SYS_iopl), ("ioperm", libc::SYS_ioperm)]),
    #[cfg(target_arch = "x86_64")]
    (
        "calls of the x32 variant that have numbers of their own",
        &[
            ("ptrace", X32 + 521),
            ("kexec_load", X32 + 528),
            ("process_vm_readv", X32 + 539),
            ("process_vm_writev", X32 + 540),
        ],
    ),
];

/// What is refused by its arguments, for the documentation.
pub const REFUSED_BY_ARGUMENT: &[(&str, &str)] = &[
    (
        "`clone` and `unshare` with a flag for a namespace; `clone3` as if the kernel did not know it",
        "namespaces of its own give rights over mounts and networks that open most holes of the kernel; the flags of \
         `clone3` cannot be looked at, and programs then use `clone`",
    ),
    (
        "`socket` of other families than Unix, IPv4, IPv6 and netlink's routes",
        "raw packets, virtual machine sockets, the kernel's cryptography and other rarely tested parts",
    ),
    ("`socket` of the raw type", "forged packets"),
    (
        "under `Isolated` without a network namespace: every `socket` but Unix and netlink's routes",
        "the network, loopback included",
    ),
    ("`ioctl` `TIOCSTI` and `TIOCLINUX`", "typing into a terminal"),
];

/// Newer than the table of numbers in use; the same on all processors.
const OPEN_TREE_ATTR: i64 = 467;
/// Marks a call of the x32 variant, whose processor word in the filter is that of ordinary programs.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

const NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    NEW_TIME,
];
/// `CLONE_NEWTIME`: only `unshare` takes it, in `clone` it is part of the exit signal and never set by it.
const NEW_TIME: libc::c_int = 0x80;
const SOCKET_TYPE_MASK: u64 = 0xf;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl SystemCallFilter {
    /// Restricts the calling thread and everything it starts, for good.
    pub(super) fn apply_to_this_thread(self) -> Result<(), FilterError> {
        for program in self.programs()? {
            seccompiler::apply_filter(&program)?;
        }
        Ok(())
    }

    /// One program per answer that a refused call gets.
    fn programs(self) -> Result<[BpfProgram; 2], FilterError> {
        let denied = self.denied()?;
        let unknown = with_variants(BTreeMap::from([(libc::SYS_clone3, Vec::new())]));
        Ok([program(denied, libc::EPERM)?, program(unknown, libc::ENOSYS)?])
    }

    fn denied(self) -> Result<Rules, FilterError> {
        let mut rules: Rules =
            REFUSED.iter().flat_map(|(_, calls)| calls.iter().map(|(_, call)| (*call, vec![]))).collect();
        let flag = |flag: libc::c_int| {
            let flag = u64::from(flag.cast_unsigned());
            SeccompRule::new(vec![SeccompCondition::new(0, Length::Dword, Is::MaskedEq(flag), flag)?])
        };
        let cloned = NAMESPACES.into_iter().filter(|namespace| *namespace != NEW_TIME);
        rules.insert(libc::SYS_clone, cloned.map(flag).collect::<Result<_, _>>()?);
        rules.insert(libc::SYS_unshare, NAMESPACES.into_iter().map(flag).collect::<Result<_, _>>()?);
        rules.insert(libc::SYS_socket, self.sockets()?);
        let request = |request: u64| SeccompRule::new(vec![equal(1, request)?]);
        rules.insert(libc::SYS_ioctl, vec![request(libc::TIOCSTI)?, request(libc::TIOCLINUX)?]);
        Ok(with_variants(rules))
    }

    fn sockets(self) -> Result<Vec<SeccompRule>, FilterError> {
        let allowed: &[libc::c_int] = match self.sockets {
            Network::Inherit => &[libc::AF_UNIX, libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6],
            Network::Isolated => &[libc::AF_UNIX, libc::AF_NETLINK],
        };
        let none_of_them = allowed.iter().map(|family| different(0, *family)).collect::<Result<Vec<_>, _>>()?;
        let mut rules = vec![
            SeccompRule::new(none_of_them)?,
            SeccompRule::new(vec![equal(0, number(libc::AF_NETLINK))?, different(2, libc::NETLINK_ROUTE)?])?,
        ];
        // Netlink has no other type than raw and datagrams, which are the same to it.
        for family in [libc::AF_INET, libc::AF_INET6] {
            let raw = SeccompCondition::new(1, Length::Dword, Is::MaskedEq(SOCKET_TYPE_MASK), number(libc::SOCK_RAW))?;
            rules.push(SeccompRule::new(vec![equal(0, number(family))?, raw])?);
        }
        Ok(rules)
    }
}

fn number(constant: libc::c_int) -> u64 {
    u64::from(constant.cast_unsigned())
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Dword, Is::Eq, value)
}

fn different(argument: u8, value: libc::c_int) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Dword, Is::Ne, number(value))
}

/// Each rule for the x32 variant too, where a kernel may offer it.
fn with_variants(mut rules: Rules) -> Rules {
    #[cfg(target_arch = "x86_64")]
    for (call, rule) in rules.clone() {
        rules.insert(call | X32, rule);
    }
    rules
}

fn program(rules: Rules, error: libc::c_int) -> Result<BpfProgram, FilterError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| FilterError::Processor)?;
    let answer = SeccompAction::Errno(error.cast_unsigned());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, answer, processor)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_are_programs_and_a_call_has_one_reason() {
        for sockets in [Network::Inherit, Network::Isolated] {
            let programs = SystemCallFilter { sockets }.programs().unwrap();
            // The kernel's own bound for a program.
            assert!(programs.iter().all(|program| !program.is_empty() && program.len() < 4096));
        }
        let mut calls: Vec<i64> = REFUSED.iter().flat_map(|(_, calls)| calls.iter().map(|(_, call)| *call)).collect();
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), all);
    }

    #[test]
    fn a_restricted_thread_is_refused_what_the_filter_names_and_nothing_else() {
        use std::net::{TcpListener, UdpSocket};
        use std::os::unix::net::UnixStream;
        let tried = |sockets| {
            std::thread::spawn(move || {
                SystemCallFilter { sockets }.apply_to_this_thread().unwrap();
                let refused = |error: std::io::Error| error.raw_os_error() == Some(libc::EPERM);
                [
                    TcpListener::bind("127.0.0.1:0").is_err_and(refused),
                    UdpSocket::bind("127.0.0.1:0").is_err_and(refused),
                    UnixStream::pair().is_err(),
                    std::thread::spawn(|| ()).join().is_err(),
                    std::process::Command::new("true").status().is_err(),
                    std::process::Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|s| !s.success()),
                ]
            })
            .join()
            .unwrap()
        };
        assert_eq!(tried(Network::Inherit), [false, false, false, false, false, true]);
        assert_eq!(tried(Network::Isolated), [true, true, false, false, false, true]);
    }
}
