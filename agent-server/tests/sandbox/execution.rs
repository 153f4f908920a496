//! How commands run and end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent_server::sandbox::{ExecEvent, ExecOutcome, ExecRequest, Network, Sandbox, SandboxError};
use agent_server::workspace::WorkspacePath;

use crate::place::{Finished, Mode, PATIENCE, Place, collect, limits, request, run, run_request, runs, start, until};

fn exited(code: i32, stdout: &str, stderr: &str) -> Finished {
    Finished { stdout: stdout.into(), stderr: stderr.into(), outcome: ExecOutcome::Exited(code), dropped_bytes: 0 }
}

async fn streams_and_exit_code_are_told_apart(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    assert_eq!(run(&sandbox, "echo out; echo err >&2; exit 3").await, exited(3, "out\n", "err\n"));
    let killed = run(&sandbox, "kill -SEGV $$").await;
    assert_eq!(killed.outcome, ExecOutcome::Signaled(11));
}

async fn a_command_runs_in_its_directory_and_not_outside_the_workspace(mode: Mode) {
    let place = Place::new();
    std::fs::create_dir_all(place.workspace().join("a b/c")).unwrap();
    std::os::unix::fs::symlink("/etc", place.workspace().join("out")).unwrap();
    let sandbox = place.sandbox(mode).await;
    let inside = |path: &str| ExecRequest { working_directory: WorkspacePath::parse(path).unwrap(), ..request("pwd") };
    let (finished, _) = run_request(&sandbox, inside("a b/c")).await;
    assert_eq!(finished, exited(0, &format!("{}/a b/c\n", place.shown(mode)), ""));
    for path in ["out", "missing"] {
        let error = sandbox.exec(inside(path)).await.unwrap_err();
        assert_eq!(error, SandboxError::WorkingDirectory(WorkspacePath::parse(path).unwrap()));
    }
}

async fn a_command_sees_the_allow_list_and_its_request(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let environment = BTreeMap::from([("GREETING".into(), "hello".into()), ("X_TOKEN".into(), "secret".into())]);
    let (finished, _) = run_request(&sandbox, ExecRequest { environment, ..request("env") }).await;
    let names: Vec<&str> = finished.stdout.lines().filter_map(|line| line.split('=').next()).collect();
    assert!(names.contains(&"GREETING") && names.contains(&"HOME"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("CARGO") || *name == "X_TOKEN"), "{names:?}");
}

async fn a_timeout_ends_the_whole_tree_also_what_left_the_group(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let [own_session, orphan, foreground] = [86401, 86402, 86403].map(|number| mode.seconds(number));
    let command =
        format!("setsid sh -c 'trap \"\" TERM; sleep {own_session}' & (sleep {orphan} &) ; sleep {foreground}");
    let begin = Instant::now();
    let timed = ExecRequest { timeout: Duration::from_millis(300), ..request(&command) };
    let (finished, _) = run_request(&sandbox, timed).await;
    assert_eq!(finished.outcome, ExecOutcome::TimedOut);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    for argument in [own_session, orphan, foreground] {
        assert!(!runs(&argument), "sleep {argument} is left");
    }
    assert_eq!(sandbox.running(), 0);
}

async fn a_stop_ends_the_tree_at_once_when_nothing_handles_the_signal(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let seconds = mode.seconds(86404);
    let request = request(&format!("sleep {seconds} & sleep {seconds}"));
    let cancel = request.cancel.clone();
    let events = sandbox.exec(request).await.unwrap();
    until("the command runs", || runs(&seconds)).await;
    let begin = Instant::now();
    cancel.cancel();
    let (finished, _) = collect(events).await;
    assert_eq!(finished.outcome, ExecOutcome::Stopped);
    assert!(!runs(&seconds));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

async fn a_handler_of_the_termination_signal_gets_its_time(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    // No child: bash runs a pending trap also in a child that it has just forked, and the word would come twice.
    let command = "trap 'echo saved; exit 0' TERM; echo ready; while :; do :; done";
    let request = request(command);
    let cancel = request.cancel.clone();
    let mut events = sandbox.exec(request).await.unwrap();
    assert!(matches!(events.recv().await, Some(ExecEvent::Output { .. })));
    cancel.cancel();
    let (finished, _) = collect(events).await;
    assert_eq!((finished.stdout.as_str(), finished.outcome), ("saved\n", ExecOutcome::Stopped));
}

async fn dropping_the_receiver_ends_the_tree(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let seconds = mode.seconds(86406);
    let events = sandbox.exec(request(&format!("sleep {seconds}"))).await.unwrap();
    until("the command runs", || runs(&seconds)).await;
    drop(events);
    until("the command is gone", || !runs(&seconds) && sandbox.running() == 0).await;
}

async fn a_background_process_neither_delays_the_end_nor_outlives_the_turn(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let seconds = mode.seconds(86407);
    let request = request(&format!("sleep {seconds} & echo done"));
    let turn = request.cancel.clone();
    let begin = Instant::now();
    let (finished, _) = run_request(&sandbox, request).await;
    assert_eq!(finished, exited(0, "done\n", ""));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert_eq!((sandbox.running(), runs(&seconds)), (1, true));
    turn.cancel();
    until("the background process is gone", || sandbox.running() == 0).await;
    assert!(!runs(&seconds));
}

async fn stop_all_ends_foreground_and_background(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let (background, seconds) = (mode.seconds(86408), mode.seconds(86409));
    run(&sandbox, &format!("setsid sleep {background} >/dev/null 2>&1 &")).await;
    let foreground = sandbox.exec(request(&format!("sleep {seconds}"))).await.unwrap();
    assert_eq!(sandbox.running(), 2);
    sandbox.stop_all().await;
    assert_eq!((sandbox.running(), runs(&background), runs(&seconds)), (0, false, false));
    assert_eq!(collect(foreground).await.0.outcome, ExecOutcome::Stopped);
}

async fn a_background_process_that_ends_by_itself_is_no_longer_counted(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    run(&sandbox, "sleep 0.2 &").await;
    until("the count falls", || sandbox.running() == 0).await;
}

async fn output_over_the_cap_is_counted(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let capped = ExecRequest { max_output_bytes: 10, ..request("head -c 5000000 /dev/zero; echo err >&2") };
    let (finished, _) = run_request(&sandbox, capped).await;
    assert_eq!((finished.stdout.len(), finished.stderr.as_str()), (10, "err\n"));
    assert_eq!((finished.outcome, finished.dropped_bytes), (ExecOutcome::Exited(0), 4_999_990));
}

async fn a_gibibyte_of_output_does_not_grow_memory(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let flood = ExecRequest { max_output_bytes: 1000, ..request("head -c 1073741824 /dev/zero") };
    let before = resident_bytes();
    let (finished, end) = run_request(&sandbox, flood).await;
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!((finished.outcome, finished.dropped_bytes), (ExecOutcome::Exited(0), (1 << 30) - 1000));
    assert!(grown < 32 << 20, "{grown} bytes more");
    eprintln!("1 GiB of output took {:?}", end.duration);
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn commands_that_cannot_be_started_say_why(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    for command in ["a\0b".to_owned(), "x".repeat(128 * 1024)] {
        assert!(matches!(sandbox.exec(request(&command)).await, Err(SandboxError::Spawn(_))));
    }
    assert_eq!(run(&sandbox, &format!(": {}", "x".repeat(100_000))).await, exited(0, "", ""));
    assert_eq!(sandbox.running(), 0);
}

async fn many_commands_at_once_all_end_well(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let commands = (0..50).map(|number| {
        let sandbox = &sandbox;
        async move { (number, run(sandbox, &format!("echo {number}")).await) }
    });
    for (number, finished) in futures::future::join_all(commands).await {
        assert_eq!(finished, exited(0, &format!("{number}\n"), ""));
    }
}

async fn a_limit_that_is_hit_is_named(mode: Mode) {
    let place = Place::new();
    let mut settings = place.settings(mode);
    settings.limits.command.output_bytes = 1 << 20;
    settings.limits.command.file_size_bytes = 1 << 20;
    let sandbox = start(mode, settings, Network::Inherit).await.unwrap();
    let flood = ExecRequest { max_output_bytes: 10, ..request("cat /dev/zero") };
    let (finished, _) = run_request(&sandbox, flood).await;
    assert_eq!(finished.outcome, ExecOutcome::LimitExceeded("more than 1 MiB of output".into()));
    let (finished, end) = run_request(&sandbox, request("head -c 2M /dev/zero > large")).await;
    assert_eq!(finished.outcome, ExecOutcome::Exited(153));
    let notice = "a process was ended because a file was to become larger than 1 MiB";
    assert_eq!(end.notice.as_deref(), Some(notice));
}

async fn all_commands_together_have_limits_too(mode: Mode) {
    let place = Place::new();
    let mut settings = place.settings(mode);
    settings.limits = limits(64, 256);
    settings.limits.workspace.memory_bytes = Some(150 << 20);
    let sandbox = start(mode, settings, Network::Inherit).await.unwrap();
    let take = |mebibytes| format!("python3 -c 'import time; x = b\"x\" * ({mebibytes} << 20); time.sleep(60)'");
    let small = sandbox.exec(request(&take(60))).await.unwrap();
    let (large, _) = run_request(&sandbox, request(&take(120))).await;
    let message = "all commands of the workspace together used more than 150 MiB of memory";
    assert_eq!(large.outcome, ExecOutcome::LimitExceeded(message.into()));
    sandbox.stop_all().await;
    assert_eq!(collect(small).await.0.outcome, ExecOutcome::Stopped);
}

/// Memory of a kind that no process has for itself, and one that its owner forbids to look into.
async fn shared_memory_counts_once(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let take = |mebibytes: usize, then: &str| {
        format!(
            "python3 -c 'import ctypes, mmap, os, time; m = mmap.mmap(-1, {mebibytes} << 20); \
             [m.__setitem__(i, 1) for i in range(0, {mebibytes} << 20, 4096)]; {then}'"
        )
    };
    let hide = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); time.sleep(60)";
    for then in ["time.sleep(60)", hide] {
        let (finished, _) = run_request(&sandbox, request(&take(600, then))).await;
        assert_eq!(finished.outcome, ExecOutcome::LimitExceeded("more than 512 MiB of memory".into()));
    }
    // Four processes that have the same 200 MiB mapped, for longer than memory is looked at.
    let together = "os.fork(); os.fork(); sum(m[i] for i in range(0, 200 << 20, 4096)); time.sleep(1)";
    let (finished, _) = run_request(&sandbox, request(&take(200, together))).await;
    assert_eq!(finished.outcome, ExecOutcome::Exited(0), "{finished:?}");
}

async fn a_server_in_the_background_is_reached_by_the_next_command(mode: Mode) {
    let place = Place::new();
    std::fs::write(place.workspace().join("page"), "hello\n").unwrap();
    let sandbox = place.sandbox(mode).await;
    let serve = "python3 -u -m http.server 0 --bind 127.0.0.1 > log 2>&1 & \
                 until grep -q port log 2>/dev/null; do sleep 0.05; done";
    let serving = request(serve);
    let turn = serving.cancel.clone();
    assert_eq!(run_request(&sandbox, serving).await.0, exited(0, "", ""));
    let fetch = "port=$(sed 's/.*port \\([0-9]*\\).*/\\1/' log); \
                 python3 -c 'import urllib.request as u, sys; print(u.urlopen(sys.argv[1]).read().decode(), end=\"\")' \
                 http://127.0.0.1:$port/page";
    assert_eq!(run(&sandbox, fetch).await, exited(0, "hello\n", ""));
    turn.cancel();
    until("the server is gone", || sandbox.running() == 0).await;
}

async fn ordinary_tools_work(mode: Mode) {
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    let commands = [
        "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git status --short",
        "python3 -m venv --without-pip venv && venv/bin/python -c 'import ssl, sqlite3, multiprocessing'",
        "printf 'int main(void) { return 0; }' > main.c && cc main.c -o main && ./main",
        "if command -v node; then node -e 'setTimeout(() => {}, 1)'; fi",
        "ps ax | grep -q bash && yes | head -n 3 | sort -u | grep -q y",
        "cat <(echo a) | grep -q a && echo b > /dev/stderr && read -r line < /dev/null || true",
        "mktemp -d && mkdir -p ~/.cache && : > ~/.cache/x && [ -w \"$HOME\" ]",
        "id -un || true; getent passwd root",
    ];
    for command in commands {
        let finished = run(&sandbox, command).await;
        assert_eq!(finished.outcome, ExecOutcome::Exited(0), "{command}: {finished:?}");
    }
}

async fn a_workspace_of_any_name_works(mode: Mode) {
    let place = Place::new();
    let odd = place.workspace().join("a b\n'c\"");
    std::fs::create_dir(&odd).unwrap();
    let link = place.folder.path().join("link");
    std::os::unix::fs::symlink(&odd, &link).unwrap();
    let mut settings = place.settings(mode);
    // What the runtime does with every root.
    settings.root = std::fs::canonicalize(&link).unwrap();
    let sandbox = start(mode, settings, Network::Inherit).await.unwrap();
    assert_eq!(run(&sandbox, "echo x > file && cat file").await, exited(0, "x\n", ""));
    assert!(odd.join("file").exists());
}

macro_rules! in_every_mode {
    ($($name:ident),* $(,)?) => {
        mod direct { $(#[tokio::test] async fn $name() { super::$name(super::Mode::Direct).await })* }
        mod landlock { $(#[tokio::test] async fn $name() { super::$name(super::Mode::Landlock).await })* }
        mod bubblewrap { $(#[tokio::test] async fn $name() { super::$name(super::Mode::Bubblewrap).await })* }
    };
}

in_every_mode!(
    streams_and_exit_code_are_told_apart,
    a_command_runs_in_its_directory_and_not_outside_the_workspace,
    a_command_sees_the_allow_list_and_its_request,
    a_timeout_ends_the_whole_tree_also_what_left_the_group,
    a_stop_ends_the_tree_at_once_when_nothing_handles_the_signal,
    a_handler_of_the_termination_signal_gets_its_time,
    dropping_the_receiver_ends_the_tree,
    a_background_process_neither_delays_the_end_nor_outlives_the_turn,
    stop_all_ends_foreground_and_background,
    a_background_process_that_ends_by_itself_is_no_longer_counted,
    output_over_the_cap_is_counted,
    a_gibibyte_of_output_does_not_grow_memory,
    commands_that_cannot_be_started_say_why,
    many_commands_at_once_all_end_well,
    a_limit_that_is_hit_is_named,
    all_commands_together_have_limits_too,
    shared_memory_counts_once,
    a_server_in_the_background_is_reached_by_the_next_command,
    ordinary_tools_work,
    a_workspace_of_any_name_works,
);
