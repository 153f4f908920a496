//! Commands of a VM as real processes, and their output as lines of JSON.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use axum::body::{Body, Bytes};
use futures::stream::{self, Stream, StreamExt};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use super::check::Asked;
use super::store::{CWD, Command, Session, Store};
use super::wire::{self, Answer, Refusal, body_response, json_answer};
use super::{VercelDouble, files};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default, rename = "sudo")]
    _sudo: bool,
    #[serde(default)]
    wait: bool,
    #[serde(default)]
    logs: bool,
    timeout: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kill {
    signal: i32,
}

/// Sends a signal to all processes of a command that still runs.
pub fn signal(command: &Command, number: i32) {
    let running = command.process.filter(|_| command.exit.is_none());
    if let (Some(pid), Some(signal)) = (running.and_then(Pid::from_raw), Signal::from_named_raw(number)) {
        // It may have ended just now.
        let _ = kill_process_group(pid, signal);
    }
}

/// Starts a command and answers at once, or with a stream until it ends.
pub fn run(double: &VercelDouble, asked: &Asked<'_>, session: &Session) -> Answer {
    let run: Run = asked.json()?;
    if run.logs && !run.wait || asked.first_generation() && (run.logs || run.timeout.is_some()) {
        return Err(Refusal::bad("Invalid request: `logs` goes with `wait`, and neither it nor `timeout` with /v1"));
    }
    let id = start(double, session, &run);
    let first = asked.first_generation();
    let begun = json!({"command": render(&double.store(), &id, first)});
    if !run.wait {
        return json_answer(&begun);
    }
    let lines = output(double.clone(), id, Some(first), run.logs);
    Ok(lines_answer(stream::once(async move { begun }).chain(lines)))
}

/// Output of a command, from its start to its end.
pub fn logs(double: &VercelDouble, id: String) -> axum::response::Response {
    lines_answer(output(double.clone(), id, None, true))
}

/// One command; with `wait=true` when it has ended.
pub async fn get(double: &VercelDouble, asked: &Asked<'_>, id: &str) -> Answer {
    if asked.value("wait") == Some("true") {
        ended(double, id).await;
    }
    json_answer(&json!({"command": render(&double.store(), id, asked.first_generation())}))
}

/// Sends a signal.
pub fn kill(double: &VercelDouble, asked: &Asked<'_>, id: &str) -> Answer {
    let kill: Kill = asked.json()?;
    let store = double.store();
    if let Some(command) = store.commands.get(id) {
        signal(command, kill.signal);
    }
    json_answer(&json!({"command": render(&store, id, asked.first_generation())}))
}

fn render(store: &Store, id: &str, first: bool) -> Value {
    store.commands.get(id).map_or(Value::Null, |command| wire::command(command, store.now, first))
}

fn lines_answer(lines: impl Stream<Item = Value> + Send + 'static) -> axum::response::Response {
    let body = lines.map(|line| Ok::<_, std::io::Error>(Bytes::from(format!("{line}\n"))));
    body_response(200, "application/x-ndjson", Body::from_stream(body))
}

/// Lines of output as they come, then the ended command where one is wanted.
fn output(
    double: VercelDouble,
    id: String,
    end: Option<bool>,
    logs: bool,
) -> impl Stream<Item = Value> + Send + 'static {
    let mut changes = double.store().commands.get(&id).map(|command| command.changed.subscribe());
    let _ = changes.as_mut().map(watch::Receiver::borrow_and_update);
    stream::unfold((double, id, changes, 0_usize, false), move |(double, id, mut changes, sent, over)| async move {
        if over {
            return None;
        }
        loop {
            let (next, exit) = {
                let store = double.store();
                let command = store.commands.get(&id)?;
                (command.lines.get(sent).cloned(), command.exit)
            };
            if let Some((stream, data)) = next.filter(|_| logs) {
                return Some((json!({"stream": stream, "data": data}), (double, id, changes, sent + 1, false)));
            }
            if exit.is_some() {
                let command = render(&double.store(), &id, end?);
                return Some((json!({"command": command}), (double, id, changes, sent, true)));
            }
            changes.as_mut()?.changed().await.ok()?;
        }
    })
}

async fn ended(double: &VercelDouble, id: &str) {
    let Some(mut changes) = double.store().commands.get(id).map(|command| command.changed.subscribe()) else { return };
    while double.store().commands.get(id).is_some_and(|command| command.exit.is_none()) {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn start(double: &VercelDouble, session: &Session, run: &Run) -> String {
    let mut store = double.store();
    let root = store.root(&session.id);
    let cwd = run.cwd.clone().unwrap_or_else(|| CWD.to_owned());
    let home = root.join(&CWD[1..]).to_string_lossy().into_owned();
    let place = |text: &String| text.replace(CWD, &home);
    let id = store.identity("cmd");
    let spawned = tokio::process::Command::new(place(&run.command))
        .args(run.args.iter().map(place))
        .current_dir(files::real(&root, CWD, &cwd))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home)
        .envs(&session.config.env)
        .envs(&run.env)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let process = spawned.as_ref().ok().and_then(tokio::process::Child::id).and_then(|pid| i32::try_from(pid).ok());
    let command = Command {
        id: id.clone(),
        session: session.id.clone(),
        program: run.command.clone(),
        args: run.args.clone(),
        cwd,
        started_at: store.now,
        exit: None,
        process,
        lines: Vec::new(),
        changed: watch::Sender::new(0),
    };
    store.commands.insert(id.clone(), command);
    drop(store);
    match spawned {
        Ok(child) => drop(tokio::spawn(follow(double.clone(), id.clone(), child, run.timeout))),
        Err(error) => {
            change(double, &id, |command| command.lines.push(("stderr", format!("{}: {error}\n", run.command))));
            change(double, &id, |command| command.exit = Some(127));
        }
    }
    id
}

/// Collects output and the exit code; a time limit ends the command with SIGKILL.
async fn follow(double: VercelDouble, id: String, mut child: tokio::process::Child, timeout: Option<u64>) {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        tokio::join!(pump(&double, &id, "stdout", stdout), pump(&double, &id, "stderr", stderr));
        child.wait().await
    };
    tokio::pin!(work);
    let limit = async {
        match timeout {
            Some(limit) => tokio::time::sleep(std::time::Duration::from_millis(limit)).await,
            None => std::future::pending().await,
        }
    };
    let status = tokio::select! {
        status = &mut work => status,
        () = limit => {
            if let Some(command) = double.store().commands.get(&id) {
                signal(command, 9);
            }
            work.await
        }
    };
    let code = status.map_or(255, |status| status.code().or(status.signal().map(|number| 128 + number)).unwrap_or(255));
    change(&double, &id, |command| command.exit = Some(code));
}

fn change(double: &VercelDouble, id: &str, change: impl FnOnce(&mut Command)) {
    if let Some(command) = double.store().commands.get_mut(id) {
        change(command);
        command.changed.send_modify(|count| *count += 1);
    }
}

/// Reads to the end; a character is never split between two lines.
async fn pump(double: &VercelDouble, id: &str, name: &'static str, from: Option<impl AsyncRead + Unpin>) {
    let Some(mut from) = from else { return };
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let whole = match std::str::from_utf8(&kept) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => kept.len(),
        };
        let text: Vec<u8> = kept.drain(..whole).collect();
        if !text.is_empty() {
            let text = String::from_utf8_lossy(&text).into_owned();
            change(double, id, |command| command.lines.push((name, text)));
        }
    }
    if !kept.is_empty() {
        let text = String::from_utf8_lossy(&kept).into_owned();
        change(double, id, |command| command.lines.push((name, text)));
    }
}
