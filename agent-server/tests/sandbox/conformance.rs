//! The attacks of `sandbox::conformance`, made on a server process of its own: as root and as an ordinary user.

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_server::sandbox::conformance::{
    ATTACKS, Attack, Outcome, Target, can_make_namespaces, failed_controls, observe, table,
};
use agent_server::sandbox::direct::{DirectSandbox, DirectSettings};
use agent_server::sandbox::environment::CommandEnvironment;
use agent_server::sandbox::limits::CommandLimits;
use agent_server::sandbox::{ExecEvent, ExecOutcome, IsolationKind, Sandbox};
use rustix::fs::{Mode, OFlags};

use crate::place::{Place, collect, request, run, runs, until};

/// Stands in the environment of the attacked process only.
const PLANTED: &str = "PLANTED_API_KEY";
const ORDINARY_USER: u32 = 1000;

/// The attacked process: this test program once more, told by variables what to do.
#[tokio::test]
#[ignore = "started by the tests below with the variables that it needs"]
async fn inside() {
    let folder = PathBuf::from(std::env::var("ATTACK_FOLDER").unwrap());
    let use_landlock = std::env::var("ATTACK_LANDLOCK").unwrap() == "yes";
    let (state, key) = (folder.join("state"), folder.join("model-key"));
    let settings = DirectSettings {
        root: folder.join("workspace"),
        supervisor: folder.join("agent-server"),
        hidden: vec![state.clone(), key.clone()],
        writable: vec!["/tmp".into()],
        use_landlock,
        environment: CommandEnvironment::new(std::env::vars_os(), None, None),
        limits: CommandLimits { processes: 64, memory_bytes: Some(128 << 20), file_size_bytes: 64 << 20 },
    };
    // Deliberately without close-on-exec: what a library or a parent process may leave open.
    let left_open = rustix::fs::open(&key, OFlags::RDONLY, Mode::empty()).unwrap();
    let abstract_socket = format!("attack-{}", std::process::id());
    let name = SocketAddr::from_abstract_name(&abstract_socket).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    let target = Target {
        server: std::process::id(),
        state,
        key,
        descriptor: left_open.as_raw_fd(),
        abstract_socket,
        planted: std::env::var(PLANTED).unwrap(),
    };
    let sandbox = DirectSandbox::start(settings).await.unwrap();
    let kind = sandbox.isolation().kind;
    let wanted = if use_landlock { IsolationKind::DirectWithLandlockLayer } else { IsolationKind::None };
    assert_eq!(kind, wanted, "{:?}", sandbox.isolation());
    assert_eq!(failed_controls(&sandbox).await, Ok(Vec::new()));
    let mut observed = Vec::new();
    for attack in ATTACKS {
        observed.push((attack.name, observe(&sandbox, attack, &target).await.unwrap()));
    }
    let namespaces = can_make_namespaces(&sandbox).await.unwrap();
    let expected_of = |attack: &Attack| {
        if attack.needs_namespace() && !namespaces { Outcome::Refused } else { attack.expected(kind) }
    };
    let expected: Vec<(&str, Outcome)> = ATTACKS.iter().map(|attack| (attack.name, expected_of(attack))).collect();
    assert_eq!(observed, expected);
    assert_eq!(sandbox.running(), 0);
}

/// A process of its own, because whatever else is a child of it is ended together with the lost command.
#[tokio::test]
#[ignore = "started by the test below"]
async fn inside_with_a_lost_supervisor() {
    let place = Place::new();
    let sandbox = place.sandbox().await;
    let command = "echo $PPID; setsid sleep 86423 & sleep 86424";
    let mut events = sandbox.exec(request(command)).await.unwrap();
    let Some(ExecEvent::Output { bytes, .. }) = events.recv().await else { panic!("the supervisor's id comes first") };
    let supervisor: i32 = String::from_utf8_lossy(&bytes).trim().parse().unwrap();
    until("the command runs", || runs("86423") && runs("86424")).await;
    rustix::process::kill_process(rustix::process::Pid::from_raw(supervisor).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let (finished, _) = collect(events).await;
    assert!(matches!(finished.outcome, ExecOutcome::LimitExceeded(_)), "{finished:?}");
    until("everything is gone", || !runs("86423") && !runs("86424") && sandbox.running() == 0).await;
    assert_eq!(run(&sandbox, "echo on").await.stdout, "on\n");
}

#[test]
fn what_a_lost_supervisor_leaves_behind_is_ended() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    expect_one_pass(command.args([
        "--exact",
        "conformance::inside_with_a_lost_supervisor",
        "--ignored",
        "--nocapture",
    ]));
}

fn expect_one_pass(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Starts the attacked process and waits for it; the panic message holds its output.
fn attack_as(user: Option<u32>, use_landlock: bool) {
    let place = Place::new();
    let folder = place.folder.path();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    // The build's own folder may be closed to other users.
    bring(Path::new(env!("CARGO_BIN_EXE_agent-server")), &folder.join("agent-server"));
    let program = folder.join("tests");
    bring(&std::env::current_exe().unwrap(), &program);
    let mut command = Command::new(program);
    command
        .args(["--exact", "conformance::inside", "--ignored", "--nocapture"])
        .env("ATTACK_FOLDER", folder)
        .env("ATTACK_LANDLOCK", if use_landlock { "yes" } else { "no" })
        .env(PLANTED, format!("planted-{}", std::process::id()))
        .current_dir(folder);
    if let Some(user) = user {
        for path in ["workspace", "state", "state/session.jsonl", "model-key"] {
            std::os::unix::fs::chown(folder.join(path), Some(user), Some(user)).unwrap();
        }
        command.uid(user).gid(user);
    }
    expect_one_pass(&mut command);
}

fn bring(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).unwrap();
    }
}

/// Only root can become somebody else; anybody else is an ordinary user already.
fn ordinary_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(ORDINARY_USER)
}

#[test]
fn attacks_end_as_promised_with_the_layer() {
    attack_as(ordinary_user(), true);
}

#[test]
fn attacks_end_as_promised_without_the_layer() {
    attack_as(ordinary_user(), false);
}

#[test]
fn the_layer_holds_against_commands_of_root_too() {
    attack_as(None, true);
}

#[test]
fn the_documentation_shows_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&table()), "put this table into docs/security.md:\n{}", table());
}
