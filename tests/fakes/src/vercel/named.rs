//! Creation in all generations, and calls on durable sandboxes: get with resume, list, change, fork, delete.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::check::{Asked, project};
use super::store::{Config, LONGEST, Named, Store, TIMEOUT};
use super::wire::{self, Answer, Refusal, json_answer};
use super::{VercelDouble, policy};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Wish {
    project_id: Option<String>,
    ports: Option<Vec<u16>>,
    source: Option<Source>,
    timeout: Option<u64>,
    resources: Option<Resources>,
    runtime: Option<String>,
    network_policy: Option<Value>,
    env: Option<BTreeMap<String, String>>,
    name: Option<String>,
    persistent: Option<bool>,
    tags: Option<Map<String, Value>>,
    snapshot_expiration: Option<u64>,
    keep_last_snapshots: Option<Value>,
    image: Option<String>,
    region: Option<String>,
    current_snapshot_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Source {
    Snapshot { snapshot_id: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    vcpus: u64,
    #[serde(rename = "memory")]
    _memory: Option<u64>,
}

impl Wish {
    /// Puts what is wished over a configuration.
    fn over(self, mut config: Config, first: bool) -> Result<Config, Refusal> {
        if self.ports.as_ref().is_some_and(|ports| ports.len() > 15) {
            return Err(Refusal::bad("Invalid request: `ports` should NOT have more than 15 items."));
        }
        if self.tags.as_ref().is_some_and(|tags| tags.len() > 5) {
            return Err(Refusal::bad("Invalid request: `tags` should NOT have more than 5 properties."));
        }
        if self.timeout.is_some_and(|timeout| timeout > LONGEST) {
            return Err(Refusal(400, "sandbox_timeout_invalid", format!("`timeout` should be at most {LONGEST}")));
        }
        if self.runtime.is_some() && self.image.is_some() {
            return Err(Refusal::bad("Invalid request: `runtime` and `image` exclude each other."));
        }
        if let Some(sent) = self.network_policy {
            config.policy = policy::answered(&sent, first).map_err(Refusal::bad)?;
        }
        config.ports = self.ports.unwrap_or(config.ports);
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.vcpus = self.resources.map_or(config.vcpus, |resources| resources.vcpus);
        config.runtime = self.runtime.unwrap_or(config.runtime);
        config.image = self.image.or(config.image);
        config.env = self.env.unwrap_or(config.env);
        config.persistent = self.persistent.unwrap_or(config.persistent);
        config.tags = self.tags.unwrap_or(config.tags);
        config.expiration = self.snapshot_expiration.or(config.expiration);
        config.keep_last = self.keep_last_snapshots.or(config.keep_last);
        config.region = self.region.unwrap_or(config.region);
        Ok(config)
    }
}

fn default_config() -> Config {
    Config {
        ports: Vec::new(),
        timeout: TIMEOUT,
        vcpus: 2,
        runtime: "node24".to_owned(),
        image: None,
        env: BTreeMap::new(),
        policy: json!({"mode": "allow-all"}),
        persistent: true,
        tags: Map::new(),
        expiration: None,
        keep_last: None,
        region: "iad1".to_owned(),
    }
}

/// A new VM, in `/v2` and `/v3` with its durable name.
pub fn create(double: &VercelDouble, asked: &Asked<'_>) -> Answer {
    let mut wish: Wish = asked.json()?;
    let first = asked.first_generation();
    let mut store = double.store();
    project(wish.project_id.as_deref(), &store.options)?;
    let later = wish.name.is_some() || wish.persistent.is_some() || wish.tags.is_some() || wish.image.is_some();
    if wish.ports.is_none() || wish.current_snapshot_id.is_some() || first && later {
        return Err(Refusal::bad("Invalid request: `ports` is always sent, and only fields of this generation."));
    }
    if asked.path.first().is_some_and(|version| version == "v3") && wish.runtime.is_some() {
        return Err(Refusal::bad("Invalid request: `runtime` belongs to /v2."));
    }
    let source = match wish.source.take() {
        None => None,
        Some(Source::Snapshot { snapshot_id }) => Some(alive(&store, &snapshot_id)?),
    };
    let name = if first { None } else { Some(wish.name.take().unwrap_or_else(|| store.identity("sandbox"))) };
    add(&mut store, name, wish.over(default_config(), first)?, source)
}

fn alive(store: &Store, snapshot: &str) -> Result<String, Refusal> {
    match store.snapshots.get(snapshot) {
        Some(found) if !found.deleted => Ok(found.id.clone()),
        _ => Err(Refusal(410, "snapshot_not_found", "Snapshot not found.".to_owned())),
    }
}

fn quota(store: &Store) -> Result<(), Refusal> {
    if store.running() < store.options.running {
        return Ok(());
    }
    Err(Refusal(429, "rate_limited", "Too many sandboxes run at one time.".to_owned()))
}

fn add(store: &mut Store, name: Option<String>, config: Config, source: Option<String>) -> Answer {
    quota(store)?;
    let now = store.now;
    if let Some(name) = name.as_ref().filter(|name| store.named.contains_key(*name)) {
        return Err(Refusal::bad(format!("A sandbox with the name '{name}' already exists for this project.")));
    }
    let session = store.boot(name.clone(), config.clone(), source.clone())?;
    if let Some(name) = name {
        let named = Named { name: name.clone(), config, created_at: now, updated_at: now, session, snapshot: source };
        store.named.insert(name.clone(), named);
        return shown(store, &name, None);
    }
    match store.sessions.get(&session) {
        Some(session) => json_answer(&json!({"sandbox": wire::session(session), "routes": wire::routes(session)})),
        None => Err(Refusal::absent("Sandbox not found.")),
    }
}

fn shown(store: &Store, name: &str, resumed: Option<bool>) -> Answer {
    let Some((named, session)) =
        store.named.get(name).and_then(|named| Some((named, store.sessions.get(&named.session)?)))
    else {
        return Err(missing(name));
    };
    let mut value = json!({
        "sandbox": wire::named(store, named), "session": wire::session(session), "routes": wire::routes(session),
    });
    if let Some(resumed) = resumed {
        value["resumed"] = json!(resumed);
    }
    json_answer(&value)
}

fn missing(name: &str) -> Refusal {
    Refusal::absent(format!("Named sandbox '{name}' not found for this project."))
}

/// All durable sandboxes.
pub fn list(double: &VercelDouble, asked: &Asked<'_>) -> Answer {
    let store = double.store();
    project(asked.value("project"), &store.options)?;
    let prefix = asked.value("namePrefix").unwrap_or_default();
    let tag = asked.value("tags").and_then(|tag| tag.split_once(':'));
    let mut found: Vec<&Named> = store
        .named
        .values()
        .filter(|named| named.name.starts_with(prefix))
        .filter(|named| tag.is_none_or(|(key, value)| named.config.tags.get(key) == Some(&json!(value))))
        .collect();
    if asked.value("sortBy") != Some("name") {
        found.sort_by_key(|named| named.created_at);
    }
    if asked.value("sortOrder") != Some("asc") {
        found.reverse();
    }
    let items = found.into_iter().map(|named| wire::named(&store, named)).collect();
    let (page, pagination) = wire::page_by_cursor(items, &asked.query)?;
    json_answer(&json!({"sandboxes": page, "pagination": pagination}))
}

/// Calls on one name.
pub fn call(double: &VercelDouble, asked: &Asked<'_>, name: &str, rest: &[&str]) -> Answer {
    let mut store = double.store();
    project(asked.value("projectId"), &store.options)?;
    let Some(named) = store.named.get(name).cloned() else { return Err(missing(name)) };
    match (asked.method, rest) {
        ("GET", []) => match asked.value("resume") {
            Some("true") => resume(&mut store, &named),
            None | Some("false") => shown(&store, name, None),
            Some(_) => Err(Refusal::bad("Invalid request: `resume` should be a boolean")),
        },
        ("PATCH", []) => update(&mut store, asked, named),
        ("DELETE", []) => delete(&mut store, asked, &named),
        ("POST", ["fork"]) => {
            let mut wish: Wish = asked.json()?;
            if wish.project_id.is_some() || wish.source.is_some() || wish.runtime.is_some() {
                return Err(Refusal::bad("Invalid request: a fork has no project, source or runtime."));
            }
            let name = wish.name.take().unwrap_or_else(|| store.identity("sandbox"));
            let config = wish.over(named.config, false)?;
            add(&mut store, Some(name), config, named.snapshot)
        }
        _ => Err(Refusal::absent("Not found.")),
    }
}

/// The running VM, or a new one from the current snapshot.
fn resume(store: &mut Store, named: &Named) -> Answer {
    if store.sessions.get(&named.session).is_some_and(|session| session.status == "running") {
        return shown(store, &named.name, Some(false));
    }
    let source = named.snapshot.as_ref().map(|id| alive(store, id)).transpose()?;
    quota(store)?;
    let session = store.boot(Some(named.name.clone()), named.config.clone(), source)?;
    if let Some(named) = store.named.get_mut(&named.name) {
        named.session = session;
    }
    shown(store, &named.name, Some(true))
}

fn update(store: &mut Store, asked: &Asked<'_>, mut named: Named) -> Answer {
    let mut wish: Wish = asked.json()?;
    if wish.project_id.is_some() || wish.source.is_some() || wish.name.is_some() || wish.env.is_some() {
        return Err(Refusal::bad("Invalid request: a change has no project, source, name or env."));
    }
    if let Some(snapshot) = wish.current_snapshot_id.take() {
        named.snapshot = Some(alive(store, &snapshot)?);
    }
    named.config = wish.over(named.config, false)?;
    named.updated_at = store.now;
    store.named.insert(named.name.clone(), named.clone());
    json_answer(&json!({"sandbox": wire::named(store, &named)}))
}

fn delete(store: &mut Store, asked: &Asked<'_>, named: &Named) -> Answer {
    asked.without_body()?;
    store.end_commands(&named.session);
    store.mark_stopped(&named.session);
    let answer = json_answer(&json!({"sandbox": wire::named(store, named)}));
    store.named.remove(&named.name);
    if asked.value("deleteOrphanSnapshots") == Some("true") {
        let used: Vec<String> = store.named.values().filter_map(|other| other.snapshot.clone()).collect();
        for snapshot in store.snapshots.values_mut() {
            let own = snapshot.name.as_deref() == Some(&named.name);
            snapshot.deleted |= own && !used.contains(&snapshot.id);
        }
    }
    answer
}
