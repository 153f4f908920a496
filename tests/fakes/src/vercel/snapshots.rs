//! Calls on snapshots themselves.

use serde_json::{Value, json};

use super::VercelDouble;
use super::check::{Asked, project};
use super::wire::{self, Answer, Refusal, json_answer};

/// All snapshots, the newest first; deleted ones too.
pub fn list(double: &VercelDouble, asked: &Asked<'_>) -> Answer {
    let store = double.store();
    project(asked.value("project"), &store.options)?;
    let first = asked.first_generation();
    let found = store.snapshots.values().filter(|snapshot| snapshot.name.is_none() == first);
    if first {
        let items = found.map(|snapshot| (snapshot.created_at, wire::snapshot(snapshot, true))).collect();
        let (page, pagination) = wire::page_by_time(items, &asked.query)?;
        return json_answer(&json!({"snapshots": page, "pagination": pagination}));
    }
    let name = asked.value("name");
    let mut items: Vec<Value> = found
        .filter(|snapshot| name.is_none() || snapshot.name.as_deref() == name)
        .map(|snapshot| wire::snapshot(snapshot, false))
        .collect();
    if asked.value("sortOrder") != Some("asc") {
        items.reverse();
    }
    let (page, pagination) = wire::page_by_cursor(items, &asked.query)?;
    json_answer(&json!({"snapshots": page, "pagination": pagination}))
}

/// One snapshot: read or deleted.
pub fn one(double: &VercelDouble, asked: &Asked<'_>, id: &str, delete: bool) -> Answer {
    asked.without_body()?;
    let mut store = double.store();
    let now = store.now;
    let Some(snapshot) = store.snapshots.get_mut(id) else { return Err(Refusal::absent("Snapshot not found.")) };
    if delete {
        snapshot.deleted = true;
        snapshot.updated_at = now;
    }
    json_answer(&json!({"snapshot": wire::snapshot(snapshot, asked.first_generation())}))
}
