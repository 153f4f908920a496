//! Events about workspaces (`events.k8s.io`).
//!
//! An event's name is a hash of object, type, reason and text: the same message adds to a series, also after a restart or from
//! another replica; a changed message is a new event, so that the last line people see is the present cause.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use sha2::{Digest, Sha256};

use super::{Calls, ClusterError};
use crate::{
    crd::MANAGED_BY,
    plan::{EventKind, EventToPublish},
    telemetry::{Kind, Verb},
};

/// The API server refuses longer notes.
const NOTE_BYTES: usize = 1024;
/// The API server keeps events for an hour by default; counts older than that are of no use.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);

/// Publishes events; a failure is logged and never stops a reconcile.
pub struct Publisher {
    client: Client,
    calls: Calls,
    instance: String,
    counts: Mutex<HashMap<String, (i32, Timestamp)>>,
}

impl Publisher {
    /// Publishes as `instance`, the pod's name.
    pub fn new(client: Client, calls: Calls, instance: &str) -> Self {
        Self { client, calls, instance: instance.to_owned(), counts: Mutex::default() }
    }

    /// Publishes one event about `object`.
    pub async fn publish(&self, object: &ObjectReference, event: &EventToPublish, now: Timestamp) {
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let rendered = self.render(object, event, now);
        let name = rendered.metadata.name.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match self.write(&api, &name, &rendered, now).await {
            Ok(()) => {}
            // Nobody reads the events of a namespace that goes away, and nothing is wrong.
            Err(ClusterError::NamespaceTerminating { .. }) => {
                tracing::debug!(namespace, event = %event.reason, "no event, the namespace is being deleted");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(namespace, event = %event.reason, error, "an event was not published");
            }
        }
    }

    async fn write(&self, api: &Api<Event>, name: &str, event: &Event, now: Timestamp) -> Result<(), ClusterError> {
        let count = self.count(name, now);
        let parameters = PostParams::default();
        if count == 1 {
            match self.calls.run(Kind::Event, Verb::Create, api.create(&parameters, event)).await {
                Err(ClusterError::AlreadyExists { .. }) => {}
                other => return other.map(drop),
            }
        }
        // Known to exist, or made by an earlier process whose count is not known.
        let series = EventSeries { count: count.max(2), last_observed_time: MicroTime(now) };
        let patch = Patch::Merge(serde_json::json!({ "series": series }));
        let result = self.calls.run(Kind::Event, Verb::Patch, api.patch(name, &PatchParams::default(), &patch)).await;
        match result {
            Err(ClusterError::NotFound { .. }) => {
                self.calls.run(Kind::Event, Verb::Create, api.create(&parameters, event)).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    fn count(&self, name: &str, now: Timestamp) -> i32 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|_, (_, last)| now.duration_since(*last) < REMEMBERED);
        let entry = counts.entry(name.to_owned()).or_insert((0, now));
        *entry = (entry.0.saturating_add(1), now);
        entry.0
    }

    fn render(&self, object: &ObjectReference, event: &EventToPublish, now: Timestamp) -> Event {
        let (kind, reason) = (type_of(event.kind), event.reason.as_str());
        let mut hash = Sha256::new();
        for part in [object.uid.as_deref().unwrap_or_default(), kind, reason, &event.note] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash = u64::from_be_bytes(hash.finalize()[..8].try_into().expect("a SHA-256 has 32 bytes"));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{hash:016x}", object.name.as_deref().unwrap_or(MANAGED_BY))),
                namespace: object.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some(event.action.to_owned()),
            reason: Some(reason.to_owned()),
            note: Some(cut(&event.note, NOTE_BYTES)),
            type_: Some(kind.to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(object.clone()),
            reporting_controller: Some(MANAGED_BY.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

const fn type_of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Normal => "Normal",
        EventKind::Warning => "Warning",
    }
}

/// At most `limit` bytes, cut between characters and marked as cut.
fn cut(text: &str, limit: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters_and_marked() {
        let text = "ä".repeat(600);
        let short = cut(&text, 1024);
        assert!(short.len() <= 1024 && short.ends_with("ä…"), "{}", short.len());
        assert_eq!(cut("short", 1024), "short");
    }
}
