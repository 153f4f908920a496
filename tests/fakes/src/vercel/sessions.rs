//! Calls on one VM, the same in all generations but for the words: commands, files, stop, extension, policy, snapshot.

use serde::Deserialize;
use serde_json::{Value, json};

use super::check::{Asked, project};
use super::store::{LONGEST, Session};
use super::wire::{self, Answer, Refusal, json_answer};
use super::{VercelDouble, commands, files, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Extend {
    duration: u64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    expiration: Option<u64>,
}

/// The VMs, newest first: in `/v1` those without a name, in `/v2` those of names.
pub fn list(double: &VercelDouble, asked: &Asked<'_>) -> Answer {
    let store = double.store();
    project(asked.value("project"), &store.options)?;
    if asked.first_generation() {
        let found = store.sessions.values().filter(|session| session.name.is_none());
        let items = found.map(|session| (session.created_at, wire::session(session))).collect();
        let (page, pagination) = wire::page_by_time(items, &asked.query)?;
        return json_answer(&json!({"sandboxes": page, "pagination": pagination}));
    }
    let name = asked.value("name");
    let found = store.sessions.values().filter(|session| session.name.is_some());
    let mut items: Vec<Value> =
        found.filter(|one| name.is_none() || one.name.as_deref() == name).map(wire::session).collect();
    if asked.value("sortOrder") != Some("asc") {
        items.reverse();
    }
    let (page, pagination) = wire::page_by_cursor(items, &asked.query)?;
    json_answer(&json!({"sessions": page, "pagination": pagination}))
}

/// Dispatches what follows the identity of a VM.
pub async fn call(double: &VercelDouble, asked: &Asked<'_>, id: &str, rest: &[&str]) -> Answer {
    let first = asked.first_generation();
    let (session, root) = {
        let store = double.store();
        let found = store.sessions.get(id).filter(|session| session.name.is_none() == first).cloned();
        let Some(session) = found else { return Err(Refusal::absent(format!("Sandbox '{id}' not found."))) };
        (session, store.root(id))
    };
    match (asked.method, rest) {
        ("GET", []) => {
            asked.without_body()?;
            return json_answer(&subject(&session, true, first));
        }
        ("POST", ["stop"]) => {
            asked.without_body()?;
            return stop(double, &session, first);
        }
        _ => usable(&session)?,
    }
    match (asked.method, rest) {
        ("POST", ["cmd"]) => commands::run(double, asked, &session),
        ("POST", ["fs", "write"]) => files::write(asked, &root),
        ("POST", ["fs", "read"]) => files::read(asked, &root),
        ("POST", ["fs", "mkdir"]) => files::make_folder(asked, &root),
        ("POST", ["extend-timeout"]) => extend(double, asked, &session),
        ("POST", ["network-policy"]) => set_policy(double, asked, &session),
        ("POST", ["snapshot"]) => keep(double, asked, &session),
        ("GET", ["cmd", command]) => {
            known(double, id, command)?;
            commands::get(double, asked, command).await
        }
        ("GET", ["cmd", command, "logs"]) => {
            known(double, id, command)?;
            Ok(commands::logs(double, (*command).to_owned()))
        }
        ("POST", ["cmd", command, "kill"] | [command, "kill"]) => {
            if first != (rest.len() == 2) {
                return Err(Refusal::absent("Not found: /v1 kills without /cmd/, later generations with it."));
            }
            known(double, id, command)?;
            commands::kill(double, asked, command)
        }
        _ => Err(Refusal::absent("Not found.")),
    }
}

fn known(double: &VercelDouble, session: &str, command: &str) -> Result<(), Refusal> {
    match double.store().commands.get(command) {
        Some(found) if found.session == session => Ok(()),
        _ => Err(Refusal::absent(format!("Command '{command}' not found."))),
    }
}

fn usable(session: &Session) -> Result<(), Refusal> {
    match session.status {
        "running" => Ok(()),
        "stopping" => Err(Refusal(422, "sandbox_stopping", "Sandbox is stopping".to_owned())),
        "snapshotting" => Err(Refusal(422, "sandbox_snapshotting", "Sandbox is snapshotting".to_owned())),
        _ => {
            let message = "Sandbox has stopped execution and is no longer available";
            Err(Refusal(410, "sandbox_stopped", message.to_owned()))
        }
    }
}

fn subject(session: &Session, routes: bool, first: bool) -> Value {
    let mut value = json!({(if first { "sandbox" } else { "session" }): wire::session(session)});
    if routes {
        value["routes"] = wire::routes(session);
    }
    value
}

/// `/v1` answers while the VM still stops; later generations when it has.
fn stop(double: &VercelDouble, session: &Session, first: bool) -> Answer {
    let mut store = double.store();
    let kept = store.halt(&session.id)?;
    let now = store.now;
    let Some(ended) = store.sessions.get_mut(&session.id) else { return Err(Refusal::absent("Sandbox not found.")) };
    if first && session.status == "running" {
        ended.status = "stopping";
        ended.stopped_at = None;
        ended.updated_at = now;
    }
    let ended = ended.clone();
    let mut value = subject(&ended, false, first);
    if let Some(named) = ended.name.as_ref().and_then(|name| store.named.get(name)) {
        value["sandbox"] = wire::named(&store, named);
    }
    if let Some(snapshot) = kept.and_then(|id| store.snapshots.get(&id)) {
        value["snapshot"] = wire::snapshot(snapshot, false);
    }
    json_answer(&value)
}

fn change(double: &VercelDouble, session: &Session, first: bool, change: impl FnOnce(&mut Session)) -> Answer {
    let mut store = double.store();
    let now = store.now;
    let Some(session) = store.sessions.get_mut(&session.id) else { return Err(Refusal::absent("Sandbox not found.")) };
    change(session);
    session.updated_at = now;
    json_answer(&subject(session, false, first))
}

fn extend(double: &VercelDouble, asked: &Asked<'_>, session: &Session) -> Answer {
    let Extend { duration } = asked.json()?;
    let timeout = session.config.timeout + duration;
    if timeout > LONGEST {
        let message = format!("`timeout` should be at most {LONGEST}");
        return Err(Refusal(400, "sandbox_timeout_invalid", message));
    }
    change(double, session, asked.first_generation(), |session| session.config.timeout = timeout)
}

fn set_policy(double: &VercelDouble, asked: &Asked<'_>, session: &Session) -> Answer {
    let first = asked.first_generation();
    let policy = policy::answered(&asked.json()?, first).map_err(Refusal::bad)?;
    change(double, session, first, |session| session.config.policy = policy)
}

/// Keeps the files and stops the VM.
fn keep(double: &VercelDouble, asked: &Asked<'_>, session: &Session) -> Answer {
    let Keep { expiration } = asked.json_or_empty()?;
    let first = asked.first_generation();
    let mut store = double.store();
    store.end_commands(&session.id);
    let id = store.keep(&session.id, expiration.or(session.config.expiration))?;
    store.mark_stopped(&session.id);
    let (Some(snapshot), Some(session)) = (store.snapshots.get(&id), store.sessions.get(&session.id)) else {
        return Err(Refusal::absent("Sandbox not found."));
    };
    let mut value = subject(session, false, first);
    value["snapshot"] = wire::snapshot(snapshot, first);
    json_answer(&value)
}
