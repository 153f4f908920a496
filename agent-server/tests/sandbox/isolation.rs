//! What isolated modes show, refuse and survive.

use agent_server::sandbox::{ExecOutcome, IsolationKind, Network, Sandbox, SandboxError};

use crate::place::{Mode, Place, collect, request, run, runs, seconds, start, until};

#[tokio::test]
async fn each_mode_says_what_it_enforces() {
    let place = Place::new();
    let kinds = [
        (Mode::Direct, IsolationKind::DirectWithLandlockLayer),
        (Mode::Landlock, IsolationKind::Landlock),
        (Mode::Bubblewrap, IsolationKind::Bubblewrap),
    ];
    for (mode, kind) in kinds {
        let isolation = place.sandbox(mode).await.isolation();
        assert_eq!((isolation.kind, isolation.network), (kind, Network::Inherit), "{isolation:?}");
        let refused = format!("{isolation:?}");
        assert!(refused.contains("reading hidden path 1: refused"), "{refused}");
    }
}

#[tokio::test]
async fn bubblewrap_shows_the_workspace_and_the_system_and_nothing_else() {
    let place = Place::new();
    std::fs::write(place.workspace().join("file"), "").unwrap();
    let sandbox = place.sandbox(Mode::Bubblewrap).await;
    let seen = run(&sandbox, "pwd; ls; ls /tmp /run /var; ls -d /home /root; hostname").await;
    assert_eq!(seen.stdout, "/workspace\nfile\n/run:\nagent-server\n\n/tmp:\n\n/var:\ntmp\nsandbox\n", "{seen:?}");
    let written = run(&sandbox, "for f in / /usr /etc /run /proc/sys; do : > $f/x; done").await;
    assert_eq!(written.stderr.lines().count(), 5, "{written:?}");
}

#[tokio::test]
async fn files_in_tmp_and_processes_stay_for_the_next_command() {
    let place = Place::new();
    let sandbox = place.sandbox(Mode::Bubblewrap).await;
    let first = request(&format!("echo kept > /tmp/note; sleep {} & echo $!", seconds(86511)));
    let turn = first.cancel.clone();
    let pid = collect(sandbox.exec(first).await.unwrap()).await.0.stdout;
    let second = run(&sandbox, &format!("cat /tmp/note; cat /proc/{}/comm", pid.trim())).await;
    assert_eq!((second.stdout.as_str(), second.outcome), ("kept\nsleep\n", ExecOutcome::Exited(0)));
    turn.cancel();
    until("the background process is gone", || sandbox.running() == 0).await;
}

#[tokio::test]
async fn a_full_tmp_is_an_ordinary_error() {
    let place = Place::new();
    let mut settings = place.settings(Mode::Bubblewrap);
    settings.limits.workspace.memory_bytes = Some(64 << 20);
    let sandbox = start(Mode::Bubblewrap, settings, Network::Inherit).await.unwrap();
    for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
        let fill = format!("cd {folder}; head -c 20M /dev/zero > large; echo $?; rm large; echo x > small");
        let finished = run(&sandbox, &fill).await;
        assert_eq!(finished.stdout, "1\n", "{finished:?}");
        assert!(finished.stderr.contains("No space left"), "{finished:?}");
    }
    let refused =
        run(&sandbox, "head -c 20M /dev/zero > /dev/large; mkdir /dev/folder; echo x > /dev/null; ls /dev/ptmx").await;
    assert_eq!((refused.stdout.as_str(), refused.stderr.lines().count()), ("/dev/ptmx\n", 2), "{refused:?}");
}

#[tokio::test]
async fn a_lost_sandbox_is_built_anew_with_a_notice() {
    let place = Place::new();
    let sandbox = place.sandbox(Mode::Bubblewrap).await;
    let sleep = seconds(86512);
    let command = format!("echo x > /tmp/note; echo y > kept; sleep {sleep}");
    let running = sandbox.exec(request(&command)).await.unwrap();
    until("the command runs", || runs(&sleep)).await;
    let holder = holder_of(&place);
    rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
    let lost = collect(running).await.0.outcome;
    assert!(matches!(lost, ExecOutcome::LimitExceeded(_)), "{lost:?}");
    until("everything is gone", || !runs(&sleep) && sandbox.running() == 0).await;
    let (finished, end) = collect(sandbox.exec(request("cat kept; ls /tmp")).await.unwrap()).await;
    assert_eq!(finished.stdout, "y\n");
    assert!(end.notice.is_some_and(|notice| notice.contains("built anew")));
    let (_, end) = collect(sandbox.exec(request("true")).await.unwrap()).await;
    assert_eq!(end.notice, None);
}

/// bubblewrap's own process with this workspace among its arguments.
fn holder_of(place: &Place) -> rustix::process::Pid {
    let workspace = place.workspace().display().to_string();
    let holders = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let arguments = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let is_it = arguments.starts_with("bwrap\0") || arguments.contains("/bwrap\0");
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (is_it && arguments.contains(&workspace)).then(|| rustix::process::Pid::from_raw(pid)).flatten()
    });
    holders.min_by_key(|pid| pid.as_raw_pid()).expect("bubblewrap runs")
}

#[tokio::test]
async fn a_killed_supervisor_inside_takes_its_command_along_and_nothing_else() {
    let place = Place::new();
    let sandbox = place.sandbox(Mode::Bubblewrap).await;
    let [background, others, foreground] = [86513, 86514, 86515].map(seconds);
    let other = sandbox.exec(request(&format!("sleep {others}"))).await.unwrap();
    let command = format!("setsid sleep {background} & sleep {foreground}; true");
    let running = sandbox.exec(request(&command)).await.unwrap();
    until("the commands run", || [&background, &others, &foreground].iter().all(|argument| runs(argument))).await;
    let supervisor = parent_of(parent_of(process_with(&foreground)));
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    assert!(matches!(collect(running).await.0.outcome, ExecOutcome::LimitExceeded(_)));
    until("the rest of the command is gone", || !runs(&background) && !runs(&foreground)).await;
    assert!(runs(&others));
    sandbox.stop_all().await;
    assert_eq!(collect(other).await.0.outcome, ExecOutcome::Stopped);
    assert!(!runs(&others));
}

fn process_with(argument: &str) -> i32 {
    let has = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with("sleep\0") && line.contains(argument)
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has).unwrap()
}

fn parent_of(pid: impl std::fmt::Display) -> rustix::process::Pid {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    rustix::process::Pid::from_raw(parent.trim().parse().unwrap()).unwrap()
}

#[tokio::test]
async fn the_sandbox_ends_with_the_run() {
    let place = Place::new();
    let sandbox = place.sandbox(Mode::Bubblewrap).await;
    let holder = holder_of(&place).to_string();
    sandbox.stop_all().await;
    assert!(!std::path::Path::new("/proc").join(holder).exists());
}

#[tokio::test]
async fn a_missing_or_old_bubblewrap_is_named_with_its_remedy() {
    let place = Place::new();
    let folder = place.folder.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let with_path = |path: String| {
        let mut settings = place.settings(Mode::Bubblewrap);
        let variables = [("PATH".into(), path.into())];
        settings.environment =
            agent_server::sandbox::environment::CommandEnvironment::new(variables, Some("/workspace"), None);
        settings
    };
    let refusal = |settings| async { start(Mode::Bubblewrap, settings, Network::Inherit).await.err() };
    let message = |error: Option<SandboxError>| error.expect("refused").to_string();
    let missing = message(refusal(with_path(folder.display().to_string())).await);
    assert!(missing.contains("install the package `bubblewrap`"), "{missing}");
    let program = folder.join("bwrap");
    let say = |text: &str| {
        std::fs::write(&program, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    let path = || with_path(format!("{}:/usr/bin:/bin", folder.display()));
    say("echo bubblewrap 0.4.1");
    let old = message(refusal(path()).await);
    assert!(old.contains("too old") && old.contains("update the package"), "{old}");
    say(
        "[ \"$1\" = --version ] && echo bubblewrap 0.9.0 && exit; echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
    );
    let refused = message(refusal(path()).await);
    assert!(refused.contains("seccomp profile") && refused.contains("No permissions"), "{refused}");
}

#[tokio::test]
async fn a_secret_that_commands_would_see_keeps_bubblewrap_from_starting() {
    let place = Place::new();
    let mut settings = place.settings(Mode::Bubblewrap);
    settings.hidden.push(place.workspace().join("token"));
    let error = start(Mode::Bubblewrap, settings, Network::Inherit).await.err().expect("refused").to_string();
    assert!(error.contains("move it elsewhere"), "{error}");
}
