//! Bubblewrap mode: commands live in namespaces and under a root of their own, without capabilities, behind a filter of
//! system calls and, where the kernel has it, landlock.
//!
//! Owns what is mounted where, and finding out what can be had. Must not know how a command is started inside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::holder;
use super::landlock_layer::{Enforcement, LayerRules};
use super::local::{LocalSandbox, LocalSettings, Place};
use super::probe;
use super::restrictions::Restrictions;
use super::standing::{Builder, StandingSandbox};
use super::system_calls::SystemCallFilter;
use super::{IsolationKind, Network, SandboxError, system_folders};

/// The workspace as commands see it.
pub const ROOT: &str = "/workspace";
/// `--size` came with it.
const OLDEST: (u32, u32) = (0, 7);
/// Folders whose files count as memory, and the share of the memory of commands, in percent, that each may take. Together
/// a quarter: what commands may use is 75 % of the container's memory, so with them it stays below all of it.
const TEMPORARY_FOLDERS: [(&str, u64); 3] = [("/tmp", 15), ("/var/tmp", 5), ("/dev/shm", 5)];
/// Where the machine does not tell its memory: 4 GiB.
const MEMORY_BYTES: u64 = 4 << 30;
/// `bwrap --version` answers at once; a machine that swaps may take seconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The `/proc` of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Processes {
    /// One of its own, with the sandbox's processes.
    Fresh,
    /// An empty folder: the kernel permits no fresh one where parts of the outer one are covered, as in most pods.
    Empty,
}

/// Builds the standing sandbox and finds out what it really gives: a fresh `/proc`, else an empty one. It is refused if
/// bubblewrap cannot be had, or if a try from inside succeeds that must not.
pub async fn start(settings: LocalSettings, network: Network) -> Result<LocalSandbox, SandboxError> {
    refuse_visible_secrets(&settings)?;
    let program = find(&settings)?;
    let version = version(&program).await?;
    let settings = system_folders::with_visible_path(with_real_program(settings)?, ROOT.into());
    let mut first_refusal = None;
    for processes in [Processes::Fresh, Processes::Empty] {
        let arguments = arguments(&settings, network, processes);
        match StandingSandbox::build(Builder { program: program.clone(), arguments }).await {
            Ok(sandbox) => {
                let first = first_probes(&version, processes, first_refusal.as_deref());
                return finish(settings, network, sandbox, first).await;
            }
            Err(words) => first_refusal = Some(first_refusal.unwrap_or(words)),
        }
    }
    Err(SandboxError::Unavailable(explain(&first_refusal.unwrap_or_default())))
}

async fn finish(
    settings: LocalSettings,
    network: Network,
    sandbox: StandingSandbox,
    mut probes: Vec<String>,
) -> Result<LocalSandbox, SandboxError> {
    let rules = LayerRules {
        readable: vec!["/".into()],
        hidden: Vec::new(),
        writable: [ROOT, "/tmp", "/var/tmp", "/dev"].map(PathBuf::from).to_vec(),
    };
    let enforcement = probe::enforcement(rules.clone()).await;
    probes.push(match &enforcement {
        Ok(Enforcement::Full) => "landlock guards the supervisors of commands as well".into(),
        Ok(Enforcement::Partial) | Err(_) => {
            "the kernel is older than Linux 6.12: a command can end its own supervisor, and then ends with it".into()
        }
    });
    let restrictions = Restrictions {
        files: enforcement.is_ok().then_some(rules),
        // The network namespace isolates, so that loopback works.
        system_calls: Some(SystemCallFilter { sockets: Network::Inherit }),
        no_capabilities: true,
    };
    let place = Place::Standing { sandbox, root: ROOT.into() };
    let unprobed = probe::not_probed(IsolationKind::Bubblewrap, network);
    let mut sandbox = LocalSandbox::new(&settings, place, restrictions, unprobed)?;
    sandbox.isolation = probe::isolated(&sandbox, probes, &settings.hidden, true).await?;
    Ok(sandbox)
}

fn first_probes(version: &str, processes: Processes, refusal: Option<&str>) -> Vec<String> {
    let processes = match (processes, refusal) {
        (Processes::Fresh, _) => "commands have a /proc of their own".into(),
        (Processes::Empty, words) => format!(
            "/proc is empty, so `ps`, `<(…)` and /dev/stdin do not work: {}",
            words.unwrap_or("a fresh one was refused")
        ),
    };
    vec![version.to_owned(), processes]
}

/// A mount over a secret would be gone when the file is replaced, so secrets must lie where commands see nothing at all.
fn refuse_visible_secrets(settings: &LocalSettings) -> Result<(), SandboxError> {
    let mut visible: Vec<&Path> = system_folders::existing().collect();
    visible.push(&settings.root);
    visible.extend(settings.readable.iter().map(PathBuf::as_path));
    for hidden in &settings.hidden {
        let real = super::landlock_layer::resolve(hidden);
        if let Some(folder) = visible.iter().find(|folder| real.starts_with(super::landlock_layer::resolve(folder))) {
            return Err(SandboxError::Unavailable(format!(
                "{} must be hidden from commands and lies in {}, which they see; move it elsewhere",
                hidden.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// The first `bwrap` in the server's `PATH`.
fn find(settings: &LocalSettings) -> Result<PathBuf, SandboxError> {
    let variables = settings.environment.for_command(&std::collections::BTreeMap::new());
    let variables = variables.map_err(|error| SandboxError::Unavailable(error.to_string()))?;
    let path = variables.get("PATH").map_or("", String::as_str);
    let found = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("bwrap"))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file());
    let missing = "bubblewrap is missing: there is no `bwrap` in PATH; install the package `bubblewrap` or use another \
                   mode";
    found.ok_or_else(|| SandboxError::Unavailable(missing.into()))
}

/// `bubblewrap 0.8.0`, refused if it is too old.
async fn version(program: &Path) -> Result<String, SandboxError> {
    let unavailable = |what: &str| {
        let remedy = "install the package `bubblewrap` anew or use another mode";
        SandboxError::Unavailable(format!("{} --version: {what}; {remedy}", program.display()))
    };
    let mut command = tokio::process::Command::new(program);
    command.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let supervisor = super::strays::start_supervisor(&mut command).map_err(|error| unavailable(&error.to_string()))?;
    let output = supervisor.output(VERSION_TIMEOUT).await.map_err(|error| unavailable(&error.to_string()))?;
    let text = String::from_utf8_lossy(&output).trim().to_owned();
    match parse_version(&text) {
        Some(version) if version >= OLDEST => Ok(text),
        Some(_) => Err(SandboxError::Unavailable(format!(
            "{text} is too old: it needs version {}.{} or newer; update the package `bubblewrap` or use another mode",
            OLDEST.0, OLDEST.1
        ))),
        None => Err(unavailable("gave no version")),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("bubblewrap ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// bubblewrap looks paths up from another process, to which `/proc/self` is another one.
fn with_real_program(settings: LocalSettings) -> Result<LocalSettings, SandboxError> {
    let program = std::fs::canonicalize(&settings.program)
        .map_err(|error| SandboxError::Unavailable(format!("the server's own binary: {:?}", error.kind())))?;
    Ok(LocalSettings { program, ..settings })
}

/// What bubblewrap's refusal means, and what can be done.
fn explain(words: &str) -> String {
    let is = |part: &str| words.contains(part);
    let remedy = if is("No permissions to create new namespace")
        || is("Creating new namespace failed")
        || is("setting up uid map")
    {
        "the system refuses user namespaces: a pod needs a seccomp profile that allows them (docs/operations.md), a \
         machine needs `user.max_user_namespaces` above 0 and no `kernel.apparmor_restrict_unprivileged_userns`"
    } else if is("Can't mount proc") {
        "the system permits no /proc"
    } else if is("Unknown option") {
        "bubblewrap is too old; update the package `bubblewrap`"
    } else {
        "bubblewrap could not set the sandbox up"
    };
    format!("bubblewrap mode: {remedy}; use another mode otherwise ({words})")
}

fn arguments(settings: &LocalSettings, network: Network, processes: Processes) -> Vec<OsString> {
    let mut list = Arguments(Vec::new());
    list.add(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
    if network == Network::Isolated {
        list.add(["--unshare-net"]);
    }
    list.add(["--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"]);
    for folder in system_folders::existing() {
        match std::fs::read_link(folder) {
            // `/bin` and its like on a merged system; the target is among the folders.
            Ok(target) => list.add_paths("--symlink", &target, folder),
            Err(_) => list.add_paths("--ro-bind", folder, folder),
        }
    }
    match processes {
        Processes::Fresh => list.add(["--proc", "/proc"]),
        Processes::Empty => list.add(["--perms", "0555", "--tmpfs", "/proc", "--remount-ro", "/proc"]),
    }
    list.add(["--dev", "/dev"]);
    let memory = settings.limits.workspace.memory_bytes.unwrap_or(MEMORY_BYTES);
    for (folder, percent) in TEMPORARY_FOLDERS {
        let size = (memory / 100 * percent).to_string();
        list.add(["--size", &size, "--perms", "1777", "--tmpfs", folder]);
    }
    // It is memory too, and bubblewrap gives it no size.
    list.add(["--remount-ro", "/dev"]);
    list.add_paths("--ro-bind", &settings.program, Path::new(holder::PROGRAM));
    for path in settings.readable.iter().filter(|path| path.exists()) {
        list.add_paths("--ro-bind", path, path);
    }
    list.add_paths("--bind", &settings.root, Path::new(ROOT));
    list.add(["--chdir", ROOT, "--remount-ro", "/", "--", holder::PROGRAM, holder::SUBCOMMAND]);
    list.0
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn add<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) {
        self.0.extend(words.into_iter().map(OsString::from));
    }

    fn add_paths(&mut self, option: &str, from: &Path, to: &Path) {
        self.0.extend([OsString::from(option), from.into(), to.into()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_compared_by_its_numbers() {
        assert_eq!(parse_version("bubblewrap 0.11.1"), Some((0, 11)));
        assert!(parse_version("bubblewrap 0.11.1") > Some(OLDEST));
        assert!(parse_version("bubblewrap 0.4.0") < Some(OLDEST));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn a_refusal_names_cause_and_remedy() {
        let text = explain("bwrap: No permissions to create new namespace, likely because …");
        assert!(text.contains("seccomp profile") && text.contains("bwrap: No permissions"), "{text}");
        assert!(explain("bwrap: Unknown option --size").contains("update the package"));
    }
}
