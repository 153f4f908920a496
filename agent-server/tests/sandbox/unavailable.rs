//! Machines that lack something: what is refused, in which words, and what serves all the same.
//!
//! What a kernel lacks is taken away by a filter of system calls around a process of its own, as a pod's profile does it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use agent_server::sandbox::environment::CommandEnvironment;
use agent_server::sandbox::{ExecOutcome, IsolationKind, Network, Sandbox, SandboxError};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::conformance::expect_one_pass;
use crate::place::{Mode, Place, run, start};

const CASE: &str = "UNAVAILABLE_CASE";
const FOLDER: &str = "UNAVAILABLE_FOLDER";

/// One part of the kernel that is not there, and the error that tells so.
#[derive(Debug, Clone, Copy)]
enum Lack {
    /// The kernel was built without landlock.
    Landlock,
    /// Landlock is not among the security modules.
    LandlockIsOff,
    /// A profile refuses namespaces, as that of container runtimes does.
    NamespacesRefused,
    /// `user.max_user_namespaces` is 0.
    NoNamespaces,
    /// A kernel without filters of system calls.
    Filters,
    /// A machine on which nothing but the place of the test can be written.
    WritableRoot,
}

impl Lack {
    const ALL: [Self; 6] = [
        Self::Landlock,
        Self::LandlockIsOff,
        Self::NamespacesRefused,
        Self::NoNamespaces,
        Self::Filters,
        Self::WritableRoot,
    ];

    fn take_away(self) {
        let user = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
        let with_user = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(user), user).unwrap();
        let namespaces = || {
            [libc::SYS_clone, libc::SYS_unshare]
                .map(|call| (call, vec![SeccompRule::new(vec![with_user.clone()]).unwrap()]))
                .into_iter()
                .collect::<BTreeMap<_, _>>()
        };
        let landlock = || BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]);
        let (calls, error) = match self {
            Self::Landlock => (landlock(), libc::ENOSYS),
            Self::LandlockIsOff => (landlock(), libc::EOPNOTSUPP),
            Self::NamespacesRefused => (namespaces(), libc::EPERM),
            Self::NoNamespaces => (namespaces(), libc::ENOSPC),
            Self::Filters => (BTreeMap::from([(libc::SYS_seccomp, Vec::new())]), libc::EINVAL),
            Self::WritableRoot => return,
        };
        let answer = SeccompAction::Errno(error.cast_unsigned());
        let processor = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, processor).unwrap();
        seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    /// What starts the process that lacks it.
    fn command(self, place: &Place) -> Command {
        let program = std::env::current_exe().unwrap();
        let mut command = match self {
            Self::WritableRoot => {
                let folder = place.folder.path();
                let mut command = Command::new("bwrap");
                command.args(["--cap-add", "ALL", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev"]);
                command.args(["--proc", "/proc", "--bind"]).args([folder, folder]).arg("--").arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.args(["--exact", "unavailable::inside", "--ignored", "--nocapture"]);
        command.env(CASE, format!("{self:?}")).env(FOLDER, place.folder.path());
        command
    }
}

/// What a mode says of itself, or why it is refused.
async fn outcome(place: &Place, mode: Mode) -> Result<IsolationKind, String> {
    match start(mode, place.settings(mode), Network::Inherit).await {
        Ok(sandbox) => {
            let finished = run(&sandbox, "echo x > file && cat file").await;
            assert_eq!((finished.stdout.as_str(), &finished.outcome), ("x\n", &ExecOutcome::Exited(0)), "{finished:?}");
            let isolation = sandbox.isolation();
            let readable = isolation.probes.iter().any(|probe| probe.starts_with("SecretsReadable"));
            assert_eq!(readable, isolation.kind == IsolationKind::None, "{isolation:?}");
            sandbox.stop_all().await;
            Ok(isolation.kind)
        }
        Err(SandboxError::Unavailable(reason)) => Err(reason),
        Err(other) => unreachable!("{other:?}"),
    }
}

/// Each mode on the machine that lacks something: a kind, or words that the refusal must hold.
fn expected(lack: Lack) -> [(Mode, Result<IsolationKind, &'static str>); 3] {
    use IsolationKind::{Bubblewrap, DirectWithLandlockLayer, Landlock, None};
    let kinds = |direct, landlock, bubblewrap| {
        [(Mode::Direct, direct), (Mode::Landlock, landlock), (Mode::Bubblewrap, bubblewrap)]
    };
    match lack {
        Lack::Landlock => kinds(Ok(None), Err("the kernel was built without it"), Ok(Bubblewrap)),
        Lack::LandlockIsOff => kinds(Ok(None), Err("not enabled when the kernel started"), Ok(Bubblewrap)),
        Lack::NamespacesRefused => {
            kinds(Ok(DirectWithLandlockLayer), Ok(Landlock), Err("a pod needs a seccomp profile that allows them"))
        }
        Lack::NoNamespaces => {
            kinds(Ok(DirectWithLandlockLayer), Ok(Landlock), Err("`user.max_user_namespaces` above 0"))
        }
        Lack::Filters => kinds(
            Ok(DirectWithLandlockLayer),
            Err("no command can be started here"),
            Err("no command can be started here"),
        ),
        Lack::WritableRoot => kinds(Ok(DirectWithLandlockLayer), Ok(Landlock), Ok(Bubblewrap)),
    }
}

/// The process that lacks something: this test program once more.
#[tokio::test]
#[ignore = "started by the tests below with the variables that it needs"]
async fn inside() {
    let word = std::env::var(CASE).unwrap();
    let lack = Lack::ALL.into_iter().find(|lack| format!("{lack:?}") == word).unwrap();
    let place = Place::within(std::path::Path::new(&std::env::var(FOLDER).unwrap()));
    lack.take_away();
    for (mode, expected) in expected(lack) {
        let outcome = outcome(&place, mode).await;
        match (&outcome, expected) {
            (Ok(kind), Ok(wanted)) => assert_eq!(*kind, wanted, "{mode:?}"),
            (Err(reason), Err(words)) => {
                assert!(reason.contains(words) && reason.contains("use another mode"), "{mode:?}: {reason}");
            }
            _ => panic!("{mode:?}: {outcome:?} instead of {expected:?}"),
        }
    }
}

fn try_without(lack: Lack) {
    let place = Place::new();
    expect_one_pass(&mut lack.command(&place));
}

#[test]
fn a_kernel_without_landlock_leaves_direct_mode_readable_and_says_so() {
    try_without(Lack::Landlock);
}

#[test]
fn landlock_that_is_switched_off_is_told_from_landlock_that_is_not_there() {
    try_without(Lack::LandlockIsOff);
}

#[test]
fn a_profile_that_refuses_namespaces_is_named_with_its_remedy() {
    try_without(Lack::NamespacesRefused);
}

#[test]
fn a_machine_without_user_namespaces_is_named_with_its_remedy() {
    try_without(Lack::NoNamespaces);
}

#[test]
fn a_kernel_that_takes_no_filters_has_no_isolated_mode() {
    try_without(Lack::Filters);
}

#[test]
fn every_mode_works_on_a_read_only_root() {
    try_without(Lack::WritableRoot);
}

#[tokio::test]
async fn a_bubblewrap_that_is_too_old_or_no_bubblewrap_is_named_with_its_remedy() {
    let cases = [
        ("echo bubblewrap 0.6.3", "bubblewrap 0.6.3 is too old: it needs version 0.7 or newer; update the package"),
        ("echo something else", "gave no version"),
        ("exit 1", "gave no version"),
    ];
    for (script, words) in cases {
        let place = Place::new();
        let program = place.folder.path().join("bwrap");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut settings = place.settings(Mode::Bubblewrap);
        let path = format!("{}:/usr/bin:/bin", place.folder.path().display());
        settings.environment = CommandEnvironment::new([("PATH".into(), path.into())], Some("/workspace"), None);
        match start(Mode::Bubblewrap, settings, Network::Inherit).await.err() {
            Some(SandboxError::Unavailable(reason)) => {
                assert!(reason.contains(words) && reason.contains("use another mode"), "{script}: {reason}");
            }
            other => panic!("{script}: {other:?}"),
        }
    }
}
