//! The attacks of `sandbox::conformance`, made on a server process of its own: as root and as an ordinary user.

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_server::sandbox::conformance::{
    ATTACKS, Listeners, NETWORK_ATTACKS, Outcome, Target, failed_controls, network_table, observe, system_call_table,
    table,
};
use agent_server::sandbox::environment::CommandEnvironment;
use agent_server::sandbox::local::LocalSettings;
use agent_server::sandbox::{ExecEvent, ExecOutcome, IsolationKind, Network, Sandbox, direct};
use rustix::fs::{Mode as FileMode, OFlags};

use crate::place::{Mode, Place, collect, limits, request, run, runs, seconds, start, until};

/// Stands in the environment of the attacked process only.
const PLANTED: &str = "PLANTED_API_KEY";
const ORDINARY_USER: u32 = 1000;

/// What the attacked process does with the sandbox.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Mode(Mode),
    DirectWithoutLayer,
}

impl Subject {
    const ALL: [(&str, Self); 4] = [
        ("direct", Self::Mode(Mode::Direct)),
        ("landlock", Self::Mode(Mode::Landlock)),
        ("bubblewrap", Self::Mode(Mode::Bubblewrap)),
        ("none", Self::DirectWithoutLayer),
    ];

    fn kind(self) -> IsolationKind {
        match self {
            Self::Mode(Mode::Direct) => IsolationKind::DirectWithLandlockLayer,
            Self::Mode(Mode::Landlock) => IsolationKind::Landlock,
            Self::Mode(Mode::Bubblewrap) => IsolationKind::Bubblewrap,
            Self::DirectWithoutLayer => IsolationKind::None,
        }
    }
}

/// The attacked process: this test program once more, told by variables what to do.
#[tokio::test]
#[ignore = "started by the tests below with the variables that it needs"]
async fn inside() {
    let folder = PathBuf::from(std::env::var("ATTACK_FOLDER").unwrap());
    let word = std::env::var("ATTACK_SUBJECT").unwrap();
    let (_, subject) = Subject::ALL.into_iter().find(|(name, _)| *name == word).unwrap();
    let (state, key) = (folder.join("state"), folder.join("model-key"));
    let settings = settings_of(&folder, subject);
    // Deliberately without close-on-exec: what a library or a parent process may leave open.
    let left_open = rustix::fs::open(&key, OFlags::RDONLY, FileMode::empty()).unwrap();
    let abstract_socket = format!("attack-{}", std::process::id());
    let name = SocketAddr::from_abstract_name(&abstract_socket).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    let path_socket = folder.join("home/service");
    let _service = UnixListener::bind(&path_socket).unwrap();
    let target = Target {
        server: std::process::id(),
        process_namespace: std::fs::read_link("/proc/self/ns/pid").unwrap().display().to_string(),
        state,
        key,
        foreign: folder.join("home/notes"),
        descriptor: left_open.as_raw_fd(),
        abstract_socket,
        path_socket,
        planted: std::env::var(PLANTED).unwrap(),
    };
    let sandbox = match subject {
        Subject::Mode(mode) => start(mode, settings, Network::Inherit).await.unwrap(),
        Subject::DirectWithoutLayer => direct::start(settings, false).await.unwrap(),
    };
    let kind = sandbox.isolation().kind;
    assert_eq!(kind, subject.kind(), "{:?}", sandbox.isolation());
    assert_eq!(failed_controls(&sandbox).await, Ok(Vec::new()));
    let mut observed = Vec::new();
    for attack in ATTACKS {
        observed.push((attack, observe(&sandbox, attack, &target).await.unwrap()));
    }
    let differs: Vec<String> = observed
        .iter()
        .filter(|(attack, outcome)| !attack.is_as_promised(kind, *outcome))
        .map(|(attack, outcome)| format!("{}: {outcome} instead of {}", attack.name, attack.expected(kind)))
        .collect();
    assert_eq!(differs, Vec::<String>::new());
    assert_eq!(sandbox.running(), 0);
}

fn settings_of(folder: &Path, subject: Subject) -> LocalSettings {
    let home = if subject.kind() == IsolationKind::Bubblewrap { Some("/workspace") } else { None };
    let mut limits = limits(64, 128);
    limits.command.output_bytes = 64 << 20;
    LocalSettings {
        root: folder.join("workspace"),
        program: folder.join("agent-server"),
        hidden: vec![folder.join("state"), folder.join("model-key")],
        readable: Vec::new(),
        writable: vec!["/tmp".into()],
        environment: CommandEnvironment::new(std::env::vars_os(), home, None),
        limits,
    }
}

/// The network is attacked from this process: there is nothing to hide in it.
async fn attack_the_network(mode: Mode, network: Network) {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = Listeners { tcp: tcp.local_addr().unwrap().port(), udp: udp.local_addr().unwrap().port() };
    std::thread::spawn(move || {
        let mut bytes = [0; 16];
        while let Ok((count, from)) = udp.recv_from(&mut bytes) {
            udp.send_to(&bytes[..count], from).unwrap();
        }
    });
    let place = Place::new();
    let sandbox = place.with_network(mode, network).await;
    assert_eq!(sandbox.isolation().network, network);
    let mut differs = Vec::new();
    for attack in NETWORK_ATTACKS {
        let outcome = attack.observe(&sandbox, &at).await.unwrap();
        if !attack.is_as_promised(network, outcome) {
            differs.push((attack.name, outcome));
        }
    }
    assert_eq!(differs, Vec::<(&str, Outcome)>::new());
}

#[tokio::test]
async fn bubblewrap_isolates_the_network() {
    attack_the_network(Mode::Bubblewrap, Network::Isolated).await;
}

#[tokio::test]
async fn landlock_isolates_the_network() {
    attack_the_network(Mode::Landlock, Network::Isolated).await;
}

#[tokio::test]
async fn every_mode_can_inherit_the_network() {
    for mode in [Mode::Direct, Mode::Landlock, Mode::Bubblewrap] {
        attack_the_network(mode, Network::Inherit).await;
    }
}

/// A process of its own, because whatever else is a child of it is ended together with the lost command.
#[tokio::test]
#[ignore = "started by the test below"]
async fn inside_with_a_lost_supervisor() {
    let place = Place::new();
    let sandbox = place.sandbox(Mode::Direct).await;
    let (background, foreground) = (seconds(86423), seconds(86424));
    let command = format!("echo $PPID; setsid sleep {background} & sleep {foreground}");
    let mut events = sandbox.exec(request(&command)).await.unwrap();
    let Some(ExecEvent::Output { bytes, .. }) = events.recv().await else { panic!("the supervisor's id comes first") };
    let supervisor: i32 = String::from_utf8_lossy(&bytes).trim().parse().unwrap();
    until("the command runs", || runs(&background) && runs(&foreground)).await;
    rustix::process::kill_process(rustix::process::Pid::from_raw(supervisor).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let (finished, _) = collect(events).await;
    assert!(matches!(finished.outcome, ExecOutcome::LimitExceeded(_)), "{finished:?}");
    until("everything is gone", || !runs(&background) && !runs(&foreground) && sandbox.running() == 0).await;
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

pub fn expect_one_pass(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Starts the attacked process and waits for it; the panic message holds its output.
fn attack_as(user: Option<u32>, subject: &str) {
    let place = Place::new();
    let folder = place.folder.path();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.join("home/notes"), "private\n").unwrap();
    // The build's own folder may be closed to other users.
    bring(Path::new(env!("CARGO_BIN_EXE_agent-server")), &folder.join("agent-server"));
    let program = folder.join("tests");
    bring(&std::env::current_exe().unwrap(), &program);
    let mut command = Command::new(program);
    command
        .args(["--exact", "conformance::inside", "--ignored", "--nocapture"])
        .env("ATTACK_FOLDER", folder)
        .env("ATTACK_SUBJECT", subject)
        .env(PLANTED, format!("planted-{}", std::process::id()))
        .current_dir(folder);
    if let Some(user) = user {
        for path in ["workspace", "state", "state/session.jsonl", "model-key", "home", "home/notes"] {
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
fn attacks_on_bubblewrap_mode_end_as_promised() {
    attack_as(ordinary_user(), "bubblewrap");
}

#[test]
fn attacks_on_landlock_mode_end_as_promised() {
    attack_as(ordinary_user(), "landlock");
}

#[test]
fn attacks_on_direct_mode_end_as_promised_with_the_layer() {
    attack_as(ordinary_user(), "direct");
}

#[test]
fn attacks_on_direct_mode_end_as_promised_without_the_layer() {
    attack_as(ordinary_user(), "none");
}

#[test]
fn every_mode_holds_against_commands_of_root_too() {
    for subject in ["direct", "landlock", "bubblewrap"] {
        attack_as(None, subject);
    }
}

#[test]
fn the_documentation_shows_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(path).unwrap();
    for table in [table(), network_table(), system_call_table()] {
        assert!(text.contains(&table), "put this table into docs/security.md:\n{table}");
    }
}
