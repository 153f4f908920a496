//! The list of attacks.
//!
//! Owns what is tried and the promised outcomes. Must not know how an attack is run.

use std::path::{Path, PathBuf};

use super::Attempt::{Exhaust, LeaveBehind, OfTheKernel, Try};
use super::Outcome::{Ended, Possible, Refused};
use super::{Attack, Attempt, Outcome, Outcomes, Target};
use crate::sandbox::probe::quote;

const fn outcomes(bubblewrap: Outcome, landlock: Outcome, with_layer: Outcome, without_layer: Outcome) -> Outcomes {
    Outcomes { bubblewrap, landlock, with_layer, without_layer }
}

/// No kind of isolation lets it happen.
const NOWHERE: Outcomes = outcomes(Refused, Refused, Refused, Refused);
/// Only direct mode without the layer lets it happen.
const UNGUARDED_ONLY: Outcomes = outcomes(Refused, Refused, Refused, Possible);
/// Both isolated modes refuse it, direct mode does not.
const ISOLATED_ONLY: Outcomes = outcomes(Refused, Refused, Possible, Possible);
/// It takes a view of its own to refuse this.
const BUBBLEWRAP_ONLY: Outcomes = outcomes(Refused, Possible, Possible, Possible);
/// The supervisor ends it everywhere.
const ENDED: Outcomes = outcomes(Ended, Ended, Ended, Ended);

/// Every attack.
pub const ATTACKS: &[Attack] = &[
    attack("read the server's environment", NOWHERE, Try(|at| open(&server(at, "environ")))),
    attack("read the server's memory", NOWHERE, Try(|at| open(&server(at, "mem")))),
    attack("open the server's open files", NOWHERE, Try(|at| open(&server(at, &format!("fd/{}", at.descriptor))))),
    attack("reach files through the server's root", NOWHERE, Try(|at| open(&server(at, "root/etc/passwd")))),
    attack(
        "read the environment of all processes",
        NOWHERE,
        Try(|at| format!("grep -qs -- {} /proc/[0-9]*/environ", quote(Path::new(&at.planted)))),
    ),
    attack(
        "find a secret in its own environment",
        NOWHERE,
        Try(|at| format!("env | grep -q -- {}", quote(Path::new(&at.planted)))),
    ),
    attack(
        "use a descriptor that the server left open",
        NOWHERE,
        Try(|at| format!("read -r line <&{}", at.descriptor)),
    ),
    attack("read the model key", UNGUARDED_ONLY, Try(|at| open(&at.key))),
    attack("list the state folder", UNGUARDED_ONLY, Try(|at| format!("ls {}", quote(&at.state)))),
    attack("read a session", UNGUARDED_ONLY, Try(|at| open(&session(at)))),
    attack(
        "plant a file in the state folder",
        UNGUARDED_ONLY,
        Try(|at| format!(": > {}", quote(&at.state.join("planted")))),
    ),
    attack(
        "read a session through a symbolic link",
        UNGUARDED_ONLY,
        Try(|at| format!("ln -sf {} by-link && {}", quote(&session(at)), open(Path::new("by-link")))),
    ),
    attack(
        "read the model key through a hard link",
        UNGUARDED_ONLY,
        Try(|at| format!("ln -f {} by-hard-link && {}", quote(&at.key), open(Path::new("by-hard-link")))),
    ),
    attack(
        "read the model key through /proc/self/root",
        UNGUARDED_ONLY,
        Try(|at| open(&PathBuf::from(format!("/proc/self/root{}", at.key.display())))),
    ),
    attack(
        "read the model key in a namespace with a mount of its own",
        UNGUARDED_ONLY,
        OfTheKernel(|at| {
            let script =
                format!("mkdir -p mounted && mount --bind {} mounted && : < mounted/session.jsonl", quote(&at.state));
            format!("unshare --user --map-root-user --mount bash -c {}", quote(Path::new(&script)))
        }),
    ),
    attack("send a signal to the server", UNGUARDED_ONLY, Try(|at| format!("kill -0 {}", at.server))),
    attack("send a signal to its own supervisor", UNGUARDED_ONLY, Try(|_| "kill -0 $PPID".into())),
    attack(
        "connect to an abstract socket of the server",
        UNGUARDED_ONLY,
        Try(|at| {
            let program = "import socket, sys; socket.socket(socket.AF_UNIX).connect(chr(0) + sys.argv[1])";
            format!("python3 -c {} {}", quote(Path::new(program)), quote(Path::new(&at.abstract_socket)))
        }),
    ),
    attack("gain privileges by a setuid program", NOWHERE, Try(|_| "grep -q 'NoNewPrivs:.0' /proc/self/status".into())),
    attack("write a file over the size limit", NOWHERE, Try(|_| "head -c 200M /dev/zero > large".into())),
    attack("read a file of the user's home", ISOLATED_ONLY, Try(|at| open(&at.foreign))),
    attack(
        "write outside of the workspace",
        UNGUARDED_ONLY,
        Try(|at| format!(": > {}", quote(&at.foreign.with_file_name("planted")))),
    ),
    attack("write to the system's folders", NOWHERE, Try(|_| ": > /usr/planted || : >> /etc/passwd".into())),
    attack(
        "win a race between a link and its target",
        UNGUARDED_ONLY,
        Try(|at| {
            let swap = format!("ln -sfn . race; ln -sfn {} race", quote(&at.state));
            format!("for i in {{1..50}}; do {swap}; : < race/session.jsonl && exit 0; done; false")
        }),
    ),
    attack(
        "see the server's process",
        BUBBLEWRAP_ONLY,
        Try(|at| format!("[ \"$(readlink /proc/self/ns/pid)\" = {} ]", quote(Path::new(&at.process_namespace)))),
    ),
    attack(
        "connect to a Unix socket of another service by its path",
        BUBBLEWRAP_ONLY,
        Try(|at| {
            let program = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
            format!("python3 -c {} {}", quote(Path::new(program)), quote(&at.path_socket))
        }),
    ),
    attack("make a namespace", ISOLATED_ONLY, OfTheKernel(|_| "unshare --user --map-root-user true".into())),
    attack("mount something", NOWHERE, Try(|_| "mkdir -p mounted && mount -t tmpfs none mounted".into())),
    attack(
        "trace a process",
        ISOLATED_ONLY,
        OfTheKernel(|_| python("sys.exit(0 if c.ptrace(0, 0, 0, 0) == 0 else 1)")),
    ),
    attack(
        "use a keyring of the kernel",
        ISOLATED_ONLY,
        OfTheKernel(|_| system_call(&format!("{}, 0, -4, 1", libc::SYS_keyctl))),
    ),
    attack("use io_uring", ISOLATED_ONLY, OfTheKernel(|_| system_call(&format!("{}, 1, 0", libc::SYS_io_uring_setup)))),
    attack("use bpf", ISOLATED_ONLY, OfTheKernel(|_| system_call(&format!("{}, 0, 0, 0", libc::SYS_bpf)))),
    attack("load a kernel module", NOWHERE, Try(|_| system_call(&format!("{}, -1, 0, 0", libc::SYS_finit_module)))),
    attack("change the clock", NOWHERE, Try(|_| "date --set=@$(date +%s)".into())),
    attack(
        "open a raw socket",
        ISOLATED_ONLY,
        OfTheKernel(|_| "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'".into()),
    ),
    attack(
        "open a socket of the kernel's cryptography",
        ISOLATED_ONLY,
        OfTheKernel(|_| "python3 -c 'import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)'".into()),
    ),
    attack(
        "start processes without end",
        ENDED,
        Exhaust(
            // At most 2^9 processes, so that the test is harmless where the limit does not work.
            "b() { [ $1 = 0 ] || { b $(($1-1)) & b $(($1-1)) & sleep 20; }; }; b 9",
        ),
    ),
    attack(
        "take memory without end",
        ENDED,
        Exhaust("python3 -c 'import time; x = b\"x\" * (400 << 20); time.sleep(20)'"),
    ),
    attack("write output without end", ENDED, Exhaust("cat /dev/zero")),
    attack("run for ever", ENDED, Exhaust("trap '' TERM; while :; do sleep 1; done")),
    attack("leave a process behind", ENDED, LeaveBehind("sleep @ &", 86420)),
    attack("leave a process behind in a session of its own", ENDED, LeaveBehind("setsid -f sleep @", 86421)),
    attack(
        "leave a process behind that ignores the end",
        ENDED,
        LeaveBehind("setsid -f bash -c 'trap \"\" TERM HUP; sleep @; :' @", 86422),
    ),
];

/// Commands that must succeed: they use the means of the attacks on something that is allowed, so that an attack is not
/// refused for want of a program.
pub const CONTROLS: &[&str] = &[
    "env | grep -q PATH=",
    "kill -0 $$",
    "python3 -c 'import socket, ctypes'",
    "unshare --version && setsid true && head -c 1M /dev/zero > small && ln -f small linked && ln -sf small by-link",
    "d=$(mktemp -d) && touch $d/a && mkdir $d/b && mv $d/a $d/b/ && rm -r $d",
    "echo x > /dev/null && cat /etc/passwd && ls /usr/bin",
];

/// The same for attacks by `/proc`, which bubblewrap may leave empty; those attacks have nothing to work on then.
pub const CONTROLS_OF_PROC: &[&str] = &[
    ": < /proc/self/environ",
    ": < /proc/self/mem",
    ": < /proc/self/fd/0",
    ": < /proc/self/root/etc/passwd",
    "grep -qs -- PATH= /proc/self/environ",
    "ls /proc/self",
];

const fn attack(name: &'static str, outcomes: Outcomes, attempt: Attempt) -> Attack {
    Attack { name, outcomes, attempt }
}

fn open(path: &Path) -> String {
    format!(": < {}", quote(path))
}

fn server(at: &Target, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", at.server))
}

fn session(at: &Target) -> PathBuf {
    at.state.join("session.jsonl")
}

/// A program with the C library as `c`.
fn python(program: &str) -> String {
    let program = format!("import ctypes, sys; c = ctypes.CDLL(None, use_errno=True); {program}");
    format!("python3 -c {}", quote(Path::new(&program)))
}

/// A system call that succeeds as an attack if anything but a refusal comes back: the rest of it is only wrong arguments.
fn system_call(arguments: &str) -> String {
    let refusals = [libc::EPERM, libc::EACCES, libc::ENOSYS].map(|error| error.to_string()).join(", ");
    python(&format!("sys.exit(c.syscall({arguments}) < 0 and ctypes.get_errno() in ({refusals}))"))
}
